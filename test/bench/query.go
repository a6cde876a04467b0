package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentd/agent"
	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// lookup is a long-lived connector that knows one page.
func lookup(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var q struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, `{"id":%q,"page":{"items":[{"name":"Ada Lovelace","mail":"ada@example.org"}],"next":""}}`+"\n", q.ID); err != nil {
			return err
		}
	}
}

// askFor asks once.
func askFor(ctx context.Context, s *stack.Stack) error {
	_, err := s.Admin.Ask(ctx, adminclient.Query{
		Type: "lookup", Connector: "people", Query: json.RawMessage(`{"term":"lovelace"}`), Timeout: protocol.ToMillis(10 * time.Second),
	})
	return err
}

// askAll asks for d from n askers side by side and returns how many pages came.
func askAll(ctx context.Context, s *stack.Stack, n int, d time.Duration) (int64, error) {
	var wg sync.WaitGroup
	var pages atomic.Int64
	faults := make(chan error, n)
	end := time.Now().Add(d)
	for range n {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := askFor(ctx, s); err != nil {
					faults <- err
					return
				}
				pages.Add(1)
			}
		})
	}
	wg.Wait()
	close(faults)
	return pages.Load(), <-faults // nil when it is empty
}

// lateness is the worst that a heartbeat's answer was late so far, and how many were answered.
func lateness(ctx context.Context, e env, s *stack.Stack) (agent.LatenessStatus, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(e.bin, "agentd"), "status", "--json", "--config", s.ConfigFile).Output()
	if err != nil {
		return agent.LatenessStatus{}, fmt.Errorf("agentd status: %w", err)
	}
	var st agent.Status
	err = json.Unmarshal(out, &st)
	return st.Lateness, err
}

func benchQuery(ctx context.Context, e env, r *report) (err error) {
	const rounds = 2000
	const load = 15 * time.Second // five heartbeats
	config := fmt.Sprintf("handlers:\n  - {type: quiet, command: [/bin/sleep, \"600\"]}\nqueries:\n"+
		"  - {type: lookup, connectors: [people], command: [%q, job, lookup, \"-\"], persistent: true, concurrency: 4}\n", e.self)
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: config})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	for deadline := time.Now().Add(30 * time.Second); askFor(ctx, s) != nil; { // until the connector is present
		if time.Now().After(deadline) {
			return errors.New("the connector never answered")
		}
		time.Sleep(50 * time.Millisecond)
	}
	job, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "quiet"})
	if err != nil {
		return err
	}
	defer func() {
		_, cancelErr := s.Admin.Cancel(ctx, job.ID, "the measurement is over")
		err = errors.Join(err, cancelErr)
	}()
	took := make([]time.Duration, 0, rounds)
	for range rounds {
		asked := time.Now()
		if err := askFor(ctx, s); err != nil {
			return err
		}
		took = append(took, time.Since(asked))
	}
	r.percentiles("asked → page: server, agent, long-lived connector", took, 15*time.Millisecond)
	time.Sleep(load / 2)
	before, err := lateness(ctx, e, s)
	if err != nil {
		return err
	}
	began := time.Now()
	pages, err := askAll(ctx, s, 64, load)
	if err != nil {
		return err
	}
	r.value("64 askers, 4 connector processes", "%9.0f queries/s", float64(pages)/time.Since(began).Seconds())
	after, err := lateness(ctx, e, s)
	if err != nil {
		return err
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	r.value(fmt.Sprintf("heartbeats without load: worst lateness of %d", before.Count), "%9.2f ms", ms(before.Worst))
	// A third of the TTL is what a heartbeat may be late before the lease is in any danger; a tenth of that is unnoticeable.
	r.atMost(fmt.Sprintf("heartbeats under that load: worst lateness of %d", after.Count), "ms", ms(after.Worst), 330)
	return nil
}

// benchRedact floods with and without secrets in turn, so that a busy machine is as busy for both.
func benchRedact(ctx context.Context, e env, r *report) error {
	const pairs, secrets = 3, 20
	var list strings.Builder
	for range secrets {
		list.WriteString(rand.Text() + "\n")
	}
	if err := mkdir(e.dir); err != nil {
		return err
	}
	file := filepath.Join(e.dir, "secrets")
	if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
		return err
	}
	var mbps [2]float64
	for i := range 2 * pairs {
		with := i % 2
		sub := e
		sub.dir = fmt.Sprintf("%s-%d", e.dir, i)
		f, err := redactedOnce(ctx, sub, []string{"", fmt.Sprintf("redact: {files: [%q]}\n", file)}[with])
		if err != nil {
			return err
		}
		mbps[with] = max(mbps[with], f.mbps)
	}
	r.value(fmt.Sprintf("no secrets, best of %d", pairs), "%9.2f MB/s", mbps[0])
	r.value(fmt.Sprintf("%d secrets, best of %d", secrets, pairs), "%9.2f MB/s", mbps[1])
	r.atLeast(fmt.Sprintf("%d secrets ÷ none", secrets), "", mbps[1]/mbps[0], 0.7)
	return nil
}

func redactedOnce(ctx context.Context, e env, config string) (f flooded, err error) {
	if err := mkdir(e.dir); err != nil {
		return f, err
	}
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: floodConfig(e, "auto") + config})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	return flood(ctx, e, s)
}
