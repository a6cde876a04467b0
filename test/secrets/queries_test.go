package secrets

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// asked is how the queries came out.
type asked struct{ pages, faults atomic.Int64 }

// askMany sends n queries of the marker, eight at a time, again as often as it takes. Each answer must be the right one; errors are counted.
func askMany(t *testing.T, s *stack.Stack, from, n int, marker string, a *asked) {
	t.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 8 {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				term := fmt.Sprintf("%s-%06d", marker, from+int(i))
				page, err := askOne(t, s, term)
				for giveUp := time.Now().Add(time.Minute); err != nil && time.Now().Before(giveUp); page, err = askOne(t, s, term) {
					a.faults.Add(1)
					<-time.After(50 * time.Millisecond)
				}
				if err != nil {
					t.Errorf("query %s: %v", term, err)
					return
				}
				var p struct{ Items []struct{ Name string } }
				if err := json.Unmarshal(page, &p); err != nil || len(p.Items) != 1 || p.Items[0].Name != term {
					t.Errorf("query %s: %s, %v", term, page, err)
				}
				a.pages.Add(1)
			}
		})
	}
	wg.Wait()
}

func askOne(t *testing.T, s *stack.Stack, term string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return s.Admin.Ask(ctx, adminclient.Query{
		Type: "directory", Connector: "people", Query: json.RawMessage(`{"term":"` + term + `"}`), Timeout: protocol.ToMillis(2 * time.Second),
	})
}

// TestQueriesAreWrittenNowhere: a unique marker goes through real agent, real server and a connector thousands of times, as
// question and as answer; both are killed in the middle. No file that either wrote holds it.
func TestQueriesAreWrittenNowhere(t *testing.T) {
	t.Parallel()
	n := 2000
	if os.Getenv("AGENTD_SOAK") != "" {
		n = 10_000
	}
	marker := "marker-" + rand.Text() // not in this file, which is searched with the folder that a core would go to
	bin, dir, elsewhere := binaries.Dir(t), t.TempDir(), t.TempDir()
	var table strings.Builder
	table.WriteString("name,mail\n")
	for i := range n {
		fmt.Fprintf(&table, "%s-%06d,u%d@example.org\n", marker, i, i)
	}
	people := write(t, elsewhere, "people.csv", table.String())
	config := fmt.Sprintf("cgroup: off\nlog_level: debug\nlogs: {spool: {max_size: 64MiB}}\nhandlers: [{type: shell}]\nqueries:\n"+
		"  - {type: directory, connectors: [people], persistent: true, concurrency: 4, command: [%q, %q]}\n", filepath.Join(bin, "directory"), people)
	s, err := stack.Start(t.Context(), stack.Config{Bin: bin, Dir: dir, Config: config, AgentEnv: []string{"GOTRACEBACK=crash"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	present(t, s, marker+"-000000")
	var a asked
	askMany(t, s, 0, n/4, marker, &a)
	if got := a.faults.Load(); got > 0 {
		t.Errorf("%d of %d queries failed with nothing wrong", got, n/4)
	}
	killInTheMiddle(t, s, s.Agent, s.StartAgent, n/4, n/4, marker, &a)
	killInTheMiddle(t, s, s.Server, s.StartServer, n/2, n/4, marker, &a)
	present(t, s, marker+"-000000")
	before := a.faults.Load()
	askMany(t, s, n-n/4, n/4, marker, &a)
	if got := a.faults.Load() - before; got > 0 {
		t.Errorf("%d of %d queries failed after both were back", got, n/4)
	}
	t.Logf("%d pages, %d queries ended by the kills", a.pages.Load(), a.faults.Load())

	// A person's way to ask.
	cmd := exec.Command(filepath.Join(bin, "controlplane-mock"), "ask", "--url", s.URL, "--admin-token-file", s.TokenFile,
		"--type", "directory", "--connector", "people", `{"term":"`+marker+`-000001"}`)
	out, err := cmd.Output()
	want := `{"items":[{"mail":"u1@example.org","name":"` + marker + `-000001"}],"next":""}`
	if err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("controlplane-mock ask: %s, %v; want %s", out, err, want)
	}
	status, err := exec.Command(filepath.Join(bin, "agentd"), "status", "--json", "--config", s.ConfigFile).Output()
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "status", string(status))
	crash(t, s, marker)
	for _, f := range search(t, []string{marker}, dir, ".") {
		t.Error(f)
	}
	if len(search(t, []string{"agent started"}, dir)) == 0 {
		t.Error("the search finds nothing, not even what the agent's log begins with")
	}
}

// present waits until the connector answers.
func present(t *testing.T, s *stack.Stack, term string) {
	t.Helper()
	until(t, "the connector is present", func() bool {
		_, err := askOne(t, s, term)
		return err == nil
	})
}

// killInTheMiddle asks n queries, kills one of the two after a third of them, and starts it again.
func killInTheMiddle(t *testing.T, s *stack.Stack, p *stack.Process, again func(context.Context) error, from, n int, marker string, a *asked) {
	t.Helper()
	var wg sync.WaitGroup
	third := a.pages.Load() + int64(n/3)
	wg.Go(func() { askMany(t, s, from, n, marker, a) })
	until(t, "a third was answered", func() bool { return a.pages.Load() >= third })
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if err := again(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// crash makes the agent die as by a fault of its own, in the middle of queries: with a dump of its goroutines, and with a
// core file if it may write one.
func crash(t *testing.T, s *stack.Stack, marker string) {
	t.Helper()
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", s.Agent.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if want := "Max core file size        0 "; !strings.Contains(string(limits), want) {
		t.Errorf("the agent may write a core file:\n%s", limits)
	}
	var a asked
	var wg sync.WaitGroup
	wg.Go(func() { askMany(t, s, 0, 200, marker, &a) })
	until(t, "queries are under way", func() bool { return a.pages.Load() > 20 })
	if err := s.Agent.Signal(syscall.SIGQUIT); err != nil {
		t.Error(err)
	}
	until(t, "the agent dumped its goroutines", func() bool {
		text, err := os.ReadFile(s.Agent.Log)
		return err == nil && strings.Contains(string(text), "goroutine 1 ") && strings.Contains(string(text), "\nrip ")
	})
	if err := s.Agent.Kill(); err != nil { // it has ended, or is about to: this waits for it
		t.Error(err)
	}
	if err := s.StartAgent(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
