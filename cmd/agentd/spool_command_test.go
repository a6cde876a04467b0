package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/shipper"
	"agentd/spool"
)

// spooled is a state directory with a spool in it that runs until stop.
type spooled struct {
	config  string
	dir     string
	runtime string
	spool   *spool.Spool
	stop    func()
}

func newSpooled(t *testing.T) *spooled {
	t.Helper()
	state, runtime := t.TempDir(), t.TempDir()
	config := filepath.Join(state, "agentd.yaml")
	text := fmt.Sprintf("server: https://control.example.com\nstate_dir: %s\nruntime_dir: %s\n", state, runtime)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(spool.Config{Dir: filepath.Join(state, "spool"), MaxSize: 64 << 20, MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(runtime, socketName))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(spool.AdminPath, spool.AdminHandler(s))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	wg.Go(func() { _ = srv.Serve(l) })
	sp := &spooled{config, filepath.Join(state, "spool"), runtime, s, sync.OnceFunc(func() { cancel(); _ = srv.Close(); wg.Wait() })}
	t.Cleanup(sp.stop)
	return sp
}

func (sp *spooled) append(t *testing.T, id string, first int64, records ...protocol.Record) {
	t.Helper()
	sp.spool.SetMeta(id, []byte("m"))
	b := spool.Batch{Attempt: id, First: first, Encoding: 1}
	for _, r := range records {
		b.Data = protocol.AppendRecord(b.Data, r)
		b.Count += r.Numbers()
	}
	b.Decoded = int64(len(b.Data))
	if err := sp.spool.Append(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func (sp *spooled) run(t *testing.T, want int, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	c := &cli{in: strings.NewReader(""), out: &out, err: &errs, getenv: func(string) string { return "" }, environ: func() []string { return nil }, config: sp.config}
	cmd := c.spoolCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&errs)
	cmd.SetErr(&errs)
	cmd.SetArgs(args)
	code := exitDone
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		fmt.Fprintln(&errs, err)
		code = codeOf(err)
	}
	if code != want {
		t.Fatalf("%v: exit %d, want %d\n%s%s", args, code, want, out.String(), errs.String())
	}
	return out.String()
}

// TestSpoolCommands goes the operator's way: beside a running agent, with it stopped, elsewhere.
func TestSpoolCommands(t *testing.T) {
	sp := newSpooled(t)
	now := time.Now().UnixMicro()
	rec := func(s protocol.Stream, text string) protocol.Record {
		return protocol.Record{Time: now, Stream: s, Text: text}
	}
	part := rec(protocol.Stdout, "long ")
	part.Part = true
	last := rec(protocol.Stdout, "no newline")
	last.EOF = true
	sp.append(t, "job_a/1", 0, rec(protocol.Stdout, "old attempt"))
	sp.append(t, "job_a/2", 0, rec(protocol.Stdout, "one"), part, rec(protocol.Stderr, "oops"), rec(protocol.Stdout, "line"))
	sp.append(t, "job_a/2", 4, protocol.Record{Time: now, Stream: protocol.Remark, Gap: 6, Reason: "spoolFull"}, rec(protocol.Remark, "pipe left open"), last)
	if err := sp.spool.DeadLetter(spool.Batch{Attempt: "job_b/1", First: 7, Count: 1, Encoding: 1, Data: []byte("x\n")}, "too large"); err != nil {
		t.Fatal(err)
	}
	const text = "one\noops\nlong line\n[agentd] 6 lines are missing here: spoolFull\n[agentd] pipe left open\nno newline"
	archive := filepath.Join(t.TempDir(), "logs.tar.zst")
	look := func(t *testing.T, from ...string) {
		for _, args := range [][]string{{"job_a"}, {"job_a/2"}, {"job_a", "--attempt", "2"}, {"job_a", "--since", "1h"}} {
			if got := sp.run(t, 0, append(append([]string{"cat"}, args...), from...)...); got != text {
				t.Fatalf("cat %v: %q, want %q", args, got, text)
			}
		}
		if got, want := sp.run(t, 0, append([]string{"cat", "job_a", "--stream", "err"}, from...)...), "oops\n"; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		got := sp.run(t, 0, append([]string{"cat", "job_a", "--attempt", "1", "--ndjson"}, from...)...)
		if want := fmt.Sprintf(`{"n":0,"ts":%d,"s":"out","m":"old attempt"}`+"\n", now); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		var lines []spoolLine
		if err := json.Unmarshal([]byte(sp.run(t, 0, append([]string{"ls", "--json"}, from...)...)), &lines); err != nil {
			t.Fatal(err)
		}
		if lines[1].Job != "job_a" || lines[1].Attempt != 2 || lines[1].Lines != 12 || lines[1].State != "waiting" {
			t.Fatalf("got %+v", lines)
		}
		if from == nil && (len(lines) != 3 || lines[2].State != "dead" || lines[2].Reason != "too large") {
			t.Fatalf("got %+v", lines)
		}
		sp.run(t, 1, append([]string{"cat", "job_zzz"}, from...)...)
	}
	areas := func(t *testing.T) {
		look(t)
		sp.run(t, 0, "verify")
		sp.run(t, 0, "stat")
		sp.run(t, 0, "ls")
		sp.run(t, 0, "export", "-o", archive)
		look(t, "--from", archive)
	}
	t.Run("running", areas)
	sp.stop()
	t.Run("stopped", areas)
	sp.run(t, 2, "rm", "job_a/1")
	sp.run(t, 0, "rm", "job_a/1", "--yes")
	sp.run(t, 0, "rm", "--dead", "00000001", "--yes")
	if got := sp.run(t, 0, "ls"); strings.Contains(got, "dead") {
		t.Fatalf("got %s", got)
	}
}

// TestSpoolCatFollows prints what comes, until it is ended.
func TestSpoolCatFollows(t *testing.T) {
	sp := newSpooled(t)
	rec := func(n int) protocol.Record {
		return protocol.Record{Time: 1, Stream: protocol.Stdout, Text: fmt.Sprint("n=", n)}
	}
	sp.append(t, "job_a/1", 0, rec(0))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &cli{out: w, err: os.Stderr, getenv: func(string) string { return "" }, environ: func() []string { return nil }, config: sp.config}
	cmd := c.spoolCommand()
	cmd.SetArgs([]string{"cat", "-f", "job_a"})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var ran error
	wg.Go(func() { ran = cmd.ExecuteContext(ctx); _ = w.Close() })
	b := make([]byte, 100)
	for n := range 3 {
		k, err := r.Read(b)
		if want := fmt.Sprintf("n=%d\n", n); err != nil || string(b[:k]) != want {
			t.Fatalf("got %q, %v, want %q", b[:k], err, want)
		}
		if n < 2 {
			sp.append(t, "job_a/1", int64(n+1), rec(n+1))
		}
	}
	cancel()
	wg.Wait()
	if ran != nil {
		t.Fatal(ran)
	}
	_ = r.Close()
}

// What an agent left in memory stands behind what is in the spool, can't be removed, and isn't in the way when it can't be read.
func TestSpoolCommandsShowWhatWasLeftInMemory(t *testing.T) {
	sp := newSpooled(t)
	sp.append(t, "job_a/1", 0, protocol.Record{Time: time.Now().UnixMicro(), Stream: protocol.Stdout, Text: "spooled"})
	sp.stop()
	type silent struct{ shipper.Sender }
	file := filepath.Join(sp.runtime, "queue")
	s, err := shipper.New(shipper.Config{QueueFile: file, Memory: 4 << 20, Sender: silent{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{"job_a", "job_b"} {
		l, err := s.Open(protocol.AttemptRef{JobID: job, Attempt: 1, LeaseToken: "t"})
		if err != nil {
			t.Fatal(err)
		}
		l.Remark("first words") // number 0, which the spool has of job_a
		l.Remark("last words")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := sp.run(t, exitDone, "cat", "job_a"); got != "spooled\n[agentd] last words\n" {
		t.Errorf("cat prints %q", got)
	}
	if got := sp.run(t, exitDone, "cat", "job_b"); got != "[agentd] first words\n[agentd] last words\n" {
		t.Errorf("cat prints %q", got)
	}
	var list []spoolLine
	if err := json.Unmarshal([]byte(sp.run(t, exitDone, "ls", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Lines != 2 || list[1].Lines != 2 || list[1].Job != "job_b" || list[1].State != "waiting" {
		t.Errorf("ls lists %+v", list)
	}
	if got := sp.run(t, exitDone, "verify"); !strings.Contains(got, "5 records read; 0 records lost") { // the batch that the spool has a part of is read as a whole
		t.Errorf("verify says %q", got)
	}
	sp.run(t, exitFailed, "rm", "job_a/1", "--yes")
	if err := os.WriteFile(file, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := sp.run(t, exitDone, "cat", "job_a"); got != "spooled\n" {
		t.Errorf("with an unreadable queue, cat prints %q", got)
	}
}
