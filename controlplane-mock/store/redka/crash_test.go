package redka_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/redka"
	"agentd/internal/testmain"
)

const crashDir = "REDKA_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		if err := crashChild(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testmain.Run(m)
}

const crashLogs = 4

func crashRef(n int) store.Ref {
	return store.Ref{JobID: fmt.Sprint("job_", n), Attempt: 1, AgentID: "a"}
}

// crashBody is the body that starts at a record number: 1 KiB to 300 KiB that tell which they are.
func crashBody(job string, first int64) []byte {
	line := fmt.Appendf(nil, "%s %d ", job, first)
	return bytes.Repeat(line, int(1+(first*7919)%300)*64)
}

// crashChild appends to four logs and prints what was acknowledged, until it is killed.
func crashChild(dir string) error {
	s, err := redka.Open(dir)
	if err != nil {
		return err
	}
	ctx := context.Background()
	errs := make(chan error)
	var mu sync.Mutex
	for n := range crashLogs {
		r := crashRef(n)
		go func() { errs <- crashAppend(ctx, s, &mu, r) }()
	}
	return <-errs
}

func crashAppend(ctx context.Context, s *redka.Store, mu *sync.Mutex, r store.Ref) error {
	next, err := s.LogNext(ctx, r)
	for err == nil {
		next, err = s.AppendLog(ctx, r, store.LogBatch{First: next, Count: 3, Encoding: "snappy", Body: crashBody(r.JobID, next)})
		if err == nil {
			mu.Lock()
			_, err = fmt.Println(r.JobID, next)
			mu.Unlock()
		}
	}
	return err
}

// Killed at any moment, the store has everything that it acknowledged: dense, whole, in order.
func TestKilledWhileAppending(t *testing.T) {
	kills := 5
	if os.Getenv("AGENTD_SOAK") != "" {
		kills = 200
	}
	dir := t.TempDir()
	s := open(t, dir)
	for n := range crashLogs {
		r := crashRef(n)
		startJob(t, s, r)
	}
	acked := map[string]int64{}
	for round := range kills {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		killChild(t, dir, 1+rand.IntN(60), acked)
		s = open(t, dir)
		for n := range crashLogs {
			r := crashRef(n)
			next, err := s.LogNext(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if next < acked[r.JobID] {
				t.Fatalf("kill %d: %s has %d records, but %d were acknowledged", round, r.JobID, next, acked[r.JobID])
			}
			checkLog(t, s, r, next)
		}
	}
	if len(acked) == 0 {
		t.Fatal("nothing was acknowledged in any round")
	}
}

func startJob(t *testing.T, s *redka.Store, r store.Ref) {
	t.Helper()
	ctx := t.Context()
	if _, _, err := s.Submit(ctx, store.NewJob{ID: r.JobID, Type: "x", Payload: []byte("1"), MaxAttempts: 1, RetryOn: []protocol.Outcome{}}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Lease(ctx, store.LeaseParams{AgentID: r.AgentID, Types: []string{"x"}, PollID: r.JobID, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
}

// killChild lets a child append, and kills it once it has printed so many lines.
func killChild(t *testing.T, dir string, lines int, acked map[string]int64) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), exe)
	child.Env = append(os.Environ(), crashDir+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	for n := 1; ; n++ {
		line, err := r.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var job string
		var next int64
		if _, err := fmt.Sscan(line, &job, &next); err != nil {
			t.Fatal(err)
		}
		acked[job] = next
		if n == lines {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := child.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the child ended with %v, want it killed", err)
	}
}

// checkLog reads all of a log and checks that it is dense and as it was sent.
func checkLog(t *testing.T, s *redka.Store, r store.Ref, end int64) {
	t.Helper()
	for at := int64(0); at < end; {
		batches, err := s.ReadLog(t.Context(), r.JobID, r.Attempt, at, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(batches) == 0 {
			t.Fatalf("%s has nothing at %d, want records up to %d", r.JobID, at, end)
		}
		for _, b := range batches {
			if b.First != at || b.Count != 3 || !bytes.Equal(b.Body, crashBody(r.JobID, at)) {
				t.Fatalf("%s has a batch of %d+%d (%d bytes) at %d", r.JobID, b.First, b.Count, len(b.Body), at)
			}
			at += b.Count
		}
	}
}
