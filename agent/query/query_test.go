package query_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/agent/query"
	"agentd/internal/testmain"
)

// connectorEnv makes the test binary a connector of the named kind.
const connectorEnv = "QUERY_TEST_CONNECTOR"

func TestMain(m *testing.M) {
	if kind := os.Getenv(connectorEnv); kind != "" {
		os.Exit(connector(kind))
	}
	testmain.Run(m)
}

// connector is the program side: one process a query, or many queries a process.
func connector(kind string) int {
	switch kind {
	case "page":
		var q json.RawMessage
		if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
			return 9
		}
		fmt.Fprintln(os.Stderr, "asked for", string(q))
		fmt.Printf(`{"items":[%s,"%s/%s"],"next":"more"}`, q, os.Getenv("AGENTD_QUERY_TYPE"), os.Getenv("AGENTD_QUERY_CONNECTOR"))
	case "failure":
		fmt.Print(`{"code":"provider_throttled","retryAfter":10}`)
		return 3
	case "talkative":
		fmt.Print(`{"code":"No one named Bob!"}`)
		return 1
	case "garbage":
		fmt.Print(`<html>`)
	case "huge":
		fmt.Printf(`{"items":["%s"]}`, strings.Repeat("x", 2<<20))
	case "hang":
		if err := os.WriteFile(os.Getenv("PIDFILE"), fmt.Appendf(nil, "%d", os.Getpid()), 0o600); err != nil {
			return 9
		}
		<-time.After(time.Hour)
	case "lines":
		in := bufio.NewReader(os.Stdin)
		for n := 1; ; n++ {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return 0
			}
			var q struct {
				ID    string
				Query string
			}
			if err := json.Unmarshal(line, &q); err != nil {
				return 9
			}
			switch q.Query {
			case "crash":
				return 1
			case "lie":
				q.ID = "another"
			case "hang":
				<-time.After(time.Hour)
			case "error":
				fmt.Printf(`{"id":%q,"code":"not_found"}`+"\n", q.ID)
				continue
			}
			fmt.Printf(`{"id":%q,"page":{"items":[%q,%d,%d],"next":""}}`+"\n", q.ID, q.Query, os.Getpid(), n)
		}
	}
	return 0
}

func command(t *testing.T, kind string, env ...string) *query.Command {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &query.Command{Argv: []string{exe}, Env: append([]string{connectorEnv + "=" + kind}, env...)}
}

func question(text string) protocol.Query {
	b, _ := json.Marshal(text)
	return protocol.Query{ID: "qry_1", LeaseToken: "t", Type: "lookup", Connector: "dir", Remaining: 5000, Query: b}
}

// code is the code of a failure, "" of none.
func code(err error) string {
	if f, ok := errors.AsType[*query.Failure](err); ok {
		return f.Code
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func items(page protocol.Page) (out []string) {
	for _, item := range page.Items {
		out = append(out, string(item))
	}
	return out
}

func TestOneProcessAQuery(t *testing.T) {
	for kind, want := range map[string]struct {
		items, code string
	}{
		"page":      {items: `"bob" "lookup/dir"`},
		"failure":   {code: "provider_throttled"},
		"talkative": {code: "No one named Bob!"}, // told the handler's caller; the wire gets connector_failed, see below
		"garbage":   {code: query.CodeFailed},
		"huge":      {code: query.CodeTooBig},
	} {
		t.Run(kind, func(t *testing.T) {
			cmd := command(t, kind)
			page, err := cmd.Once(t.Context(), question("bob"))
			if got := code(err); got != want.code {
				t.Errorf("code %q, want %q", got, want.code)
			}
			if got := strings.Join(items(page), " "); got != want.items {
				t.Errorf("items %q, want %q", got, want.items)
			}
			if kind == "page" && cmd.Discarded() != int64(len("asked for \"bob\"\n")) {
				t.Errorf("discarded %d bytes of stderr", cmd.Discarded())
			}
		})
	}
}

func TestACommandThatHangsIsKilledAtTheDeadline(t *testing.T) {
	pidfile := filepath.Join(t.TempDir(), "pid")
	cmd := command(t, "hang", "PIDFILE="+pidfile)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := cmd.Once(ctx, question("x")); code(err) != query.CodeFailed {
		t.Errorf("got %v", err)
	}
	pid, err := os.ReadFile(pidfile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + string(pid)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("process %s is still there: %v", pid, err)
	}
}

func TestALongLivedConnector(t *testing.T) {
	pool := query.NewPool(command(t, "lines"), 1, nil)
	defer pool.Close()
	ask := func(text string) (protocol.Page, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if text == "hang" {
			ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
		}
		defer cancel()
		return pool.Answer(ctx, question(text))
	}
	var pid string
	for n := 1; n <= 3; n++ {
		page, err := ask("bob")
		if err != nil {
			t.Fatal(err)
		}
		got := items(page)
		if got[0] != `"bob"` || got[2] != strconv.Itoa(n) {
			t.Errorf("answer %d: %v", n, got)
		}
		if pid == "" {
			pid = got[1]
		} else if got[1] != pid {
			t.Errorf("answer %d came from process %s, want the same as before, %s", n, got[1], pid)
		}
	}
	if _, err := ask("error"); code(err) != "not_found" {
		t.Errorf("got %v, want not_found", err)
	}
	for _, trouble := range []string{"crash", "lie", "hang"} {
		if _, err := ask(trouble); code(err) != query.CodeFailed {
			t.Errorf("%s: got %v, want %s", trouble, err, query.CodeFailed)
		}
		page, err := ask("bob")
		if err != nil {
			t.Fatalf("after %s: %v", trouble, err)
		}
		got := items(page)
		if got[1] == pid || got[2] != "1" {
			t.Errorf("after %s: %v, want the first answer of a new process, not of %s", trouble, got, pid)
		}
		pid = got[1]
	}
}

func TestAConnectorThatCantStart(t *testing.T) {
	pool := query.NewPool(&query.Command{Argv: []string{"/nonexistent"}}, 2, nil)
	defer pool.Close()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := pool.Answer(ctx, question("x")); code(err) != query.CodeFailed {
			t.Errorf("got %v, want %s", err, query.CodeFailed)
		}
		cancel()
	}
}

// plane is a control plane that hands out batches and takes answers.
type plane struct {
	mu      sync.Mutex
	batches [][]protocol.Query // guarded by mu
	asked   []int              // guarded by mu: MaxQueries of each activation
	answers map[string]protocol.Answer
	fail    []error // guarded by mu: what Answer says first
}

func (p *plane) Activate(ctx context.Context, r protocol.Activation) ([]protocol.Query, error) {
	p.mu.Lock()
	p.asked = append(p.asked, r.MaxQueries)
	if len(p.batches) > 0 {
		batch := p.batches[0]
		p.batches = p.batches[1:]
		p.mu.Unlock()
		return batch, nil
	}
	p.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(r.Wait.Duration()):
		return nil, nil
	}
}

func (p *plane) Answer(_ context.Context, id string, a protocol.Answer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.fail) > 0 {
		err := p.fail[0]
		p.fail = p.fail[1:]
		if err != nil {
			return err
		}
	}
	if p.answers == nil {
		p.answers = map[string]protocol.Answer{}
	}
	// The agent clears what it sent: keep a copy, as the network would.
	b, _ := json.Marshal(a)
	var kept protocol.Answer
	_ = json.Unmarshal(b, &kept)
	p.answers[id] = kept
	return nil
}

func (p *plane) answer(id string) (protocol.Answer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.answers[id]
	return a, ok
}

func numbered(from, n int, remaining protocol.Millis) (out []protocol.Query) {
	for i := range n {
		q := question(fmt.Sprint("q", from+i))
		q.ID, q.Remaining = fmt.Sprint("qry_", from+i), remaining
		out = append(out, q)
	}
	return out
}

func run(t *testing.T, p *plane, concurrency int, h query.Handler) (*query.Poller, func()) {
	t.Helper()
	poller, err := query.New(query.Config{Type: "lookup", Connectors: []string{"dir"}, Concurrency: concurrency, Client: p, Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	taking, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- poller.Run(taking, t.Context()) }()
	return poller, func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func TestFreePlacesAreTheOnlyDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{batches: [][]protocol.Query{numbered(0, 2, 60_000), numbered(2, 1, 60_000)}}
		most, now := 0, 0
		var mu sync.Mutex
		_, stop := run(t, p, 3, func(context.Context, protocol.Query) (protocol.Page, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(10 * time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return protocol.Page{}, nil
		})
		time.Sleep(time.Second)
		p.mu.Lock()
		if got, want := fmt.Sprint(p.asked), "[3 1]"; got != want {
			t.Errorf("asked for %s, want %s and then not, with all places taken", got, want)
		}
		p.mu.Unlock()
		time.Sleep(10 * time.Second)
		stop()
		if most != 3 {
			t.Errorf("%d at once, want 3", most)
		}
	})
}

func TestAnAnswerAfterTheDeadlineIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{batches: [][]protocol.Query{numbered(0, 1, 1000)}}
		var allowed time.Duration
		poller, stop := run(t, p, 1, func(ctx context.Context, _ protocol.Query) (protocol.Page, error) {
			deadline, _ := ctx.Deadline()
			allowed = time.Until(deadline)
			time.Sleep(2 * time.Second)
			return protocol.Page{}, nil
		})
		time.Sleep(3 * time.Second)
		stop()
		if _, sent := p.answer("qry_0"); sent {
			t.Error("sent an answer after the deadline")
		}
		if allowed != 980*time.Millisecond {
			t.Errorf("the handler had %v, want 980ms: what remains, less the way back", allowed)
		}
		if got := poller.Stats(); got != (query.Stats{Late: 1}) {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestAnswersOnTheWire(t *testing.T) {
	for name, c := range map[string]struct {
		page protocol.Page
		err  error
		want string
	}{
		"a page":              {page: protocol.Page{Items: []json.RawMessage{json.RawMessage(`1`)}, Next: "n"}, want: `{"items":[1],"next":"n"}`},
		"an empty page":       {want: `{"items":[],"next":""}`},
		"a failure":           {err: &query.Failure{Code: "provider_throttled", RetryAfter: 1500 * time.Millisecond}, want: `{"code":"provider_throttled","retryAfter":2}`},
		"an error with text":  {err: errors.New("no user bob"), want: `{"code":"connector_failed"}`},
		"a code that is text": {err: &query.Failure{Code: "No one named Bob!"}, want: `{"code":"connector_failed"}`},
		"too large":           {page: protocol.Page{Next: strings.Repeat("x", query.MaxPage+1)}, want: `{"code":"page_too_large"}`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &plane{batches: [][]protocol.Query{numbered(0, 1, 5000)}, fail: []error{&protocol.Error{Status: 503, Code: protocol.CodeUnavailable}}}
				_, stop := run(t, p, 1, func(context.Context, protocol.Query) (protocol.Page, error) { return c.page, c.err })
				time.Sleep(2 * time.Second)
				stop()
				a, sent := p.answer("qry_0")
				if !sent {
					t.Fatal("no answer was sent, want one after the 503")
				}
				var got []byte
				if a.Page != nil {
					got, _ = json.Marshal(a.Page)
				} else {
					got, _ = json.Marshal(a.Error)
				}
				if string(got) != c.want {
					t.Errorf("sent %s, want %s", got, c.want)
				}
			})
		})
	}
}

func TestGoneIsDroppedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{batches: [][]protocol.Query{numbered(0, 1, 5000)}, fail: []error{&protocol.Error{Status: 410, Code: protocol.CodeGone}}}
		poller, stop := run(t, p, 1, func(context.Context, protocol.Query) (protocol.Page, error) { return protocol.Page{}, nil })
		time.Sleep(6 * time.Second)
		stop()
		if _, sent := p.answer("qry_0"); sent {
			t.Error("sent again what is gone")
		}
		if got := poller.Stats(); got != (query.Stats{Unsent: 1}) {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestMemoryOfAQueryIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batch := numbered(0, 1, 5000)
		item := json.RawMessage(`"secret page"`)
		p := &plane{batches: [][]protocol.Query{batch}}
		_, stop := run(t, p, 1, func(context.Context, protocol.Query) (protocol.Page, error) {
			return protocol.Page{Items: []json.RawMessage{item}}, nil
		})
		time.Sleep(time.Second)
		stop()
		for what, b := range map[string][]byte{"query": batch[0].Query, "page": item} {
			if got := strings.Trim(string(b), "\x00"); got != "" {
				t.Errorf("%s still holds %q", what, got)
			}
		}
		if a, _ := p.answer("qry_0"); a.Page == nil || string(a.Page.Items[0]) != `"secret page"` {
			t.Errorf("the asker got %+v", a)
		}
	})
}

func TestConfigFaultsAreAllNamed(t *testing.T) {
	_, err := query.New(query.Config{Concurrency: -1})
	for _, want := range []string{"type is missing", "connectors are missing", "concurrency must be at least 1", "client and handler"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v doesn't say %q", err, want)
		}
	}
}
