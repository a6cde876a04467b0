package main

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// TestADayWithOneJob goes the way a person goes, against the real server.
func TestADayWithOneJob(t *testing.T) {
	s := serving(t)
	if info, err := os.Stat(s.token); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("admin token's file: got %v, %v, want mode 0600", info, err)
	}
	greeting := s.p.stdout.String()
	for _, want := range []string{s.url, s.token, "agentd link --config agentd.yaml --server " + s.url, "controlplane-mock run --url " + s.url} {
		if !strings.Contains(greeting, want) {
			t.Errorf("serve printed\n%s\nwant %q in it", greeting, want)
		}
	}

	job := s.must("submit", "--type", "shell", "--payload", `{"script":"echo hello"}`)
	s.cli("jobs").want(t, 0, "no agent online", "")
	s.cli("logs", job).want(t, 0, "", "")
	a := link(t, s)
	s.cli("agents").want(t, 0, "by-hand", "")
	s.cli("agents", "show", a.id).want(t, 0, "region=eu-1", "")
	run := a.take()
	run.ship(0, out("one"), errLine("two"), protocol.Record{Gap: 3, Reason: "spoolFull"}, out("three"))
	s.cli("logs", job).want(t, 0, "one\ntwo\n[gap: 3 records lost: spoolFull]\nthree\n", "")
	s.cli("logs", job, "--stream", "out", "--from", "5").want(t, 0, "three\n", "")
	lines := strings.Split(s.must("logs", job, "--format", "ndjson"), "\n")
	if len(lines) != 4 {
		t.Fatalf("ndjson: got %q, want 4 lines", lines)
	}
	var last struct {
		N int64  `json:"n"`
		S string `json:"s"`
		M string `json:"m"`
	}
	if err := json.Unmarshal([]byte(lines[3]), &last); err != nil || last.N != 5 || last.S != "out" || last.M != "three" {
		t.Errorf("last record: got %+v (%v), want n=5, out, three", last, err)
	}

	s.cli("cancel", job, "--reason", "enough").want(t, 0, "is being cancelled", "")
	s.cli("jobs", "--status", "running").want(t, 0, "running (cancelling)", "")
	if got := run.cancelled(); got != "enough" {
		t.Errorf("reason: got %q, want enough", got)
	}
	run.complete(protocol.Completion{Outcome: protocol.Cancelled, Signal: "SIGTERM", LogRecords: 6})
	show := s.must("job", job)
	for _, want := range []string{"cancelled", "SIGTERM", "1.5s", "6, complete", a.id} {
		if !strings.Contains(show, want) {
			t.Errorf("job shows\n%s\nwant %q in it", show, want)
		}
	}
	s.cli("cancel", job).want(t, 0, "is cancelled", "")
	s.cli("retry", job).want(t, 0, "is pending again", "")
	run = a.take()
	run.complete(protocol.Completion{Outcome: protocol.Succeeded, Result: json.RawMessage(`{"rows":3}`), LogRecords: 0})
	s.cli("job", job).want(t, 0, `{"rows":3}`, "")
	s.cli("retry", job).want(t, 1, "", "conflict")
	s.cli("cancel", job).want(t, 1, "", "nothing to cancel")

	var page adminclient.Page[adminclient.Job]
	if err := json.Unmarshal([]byte(s.must("jobs", "--json")), &page); err != nil || len(page.Items) != 1 || page.Items[0].Status != "succeeded" {
		t.Errorf("jobs --json: got %+v (%v), want one that succeeded", page, err)
	}
	s.cli("agents", "revoke", a.id).want(t, 0, "revoked", "")
	s.cli("agents", "restore", a.id).want(t, 0, a.id, "")
	s.cli("agents", "expire-key", a.id).want(t, 0, a.id, "")
	s.cli("token", "--agent-id", "agent_unknown").want(t, 1, "", "invalid")
	s.stop()
	if log := s.p.stderr.String(); strings.Contains(log, a.key) {
		t.Error("the server's log holds an API key")
	}
}

func TestTokenIsAloneOnStandardOutput(t *testing.T) {
	s := serving(t)
	r := s.cli("token", "--ttl", "1h", "--max-uses", "2")
	if r.code != 0 || r.stderr != "" || len(strings.Fields(r.stdout)) != 1 {
		t.Errorf("got %+v, want one word on standard output and nothing else", r)
	}
}

// The same key and job again is the same job; another job with the key is refused.
func TestIdempotencyKey(t *testing.T) {
	s := serving(t)
	first := s.must("submit", "--type", "x", "--idempotency-key", "k", "--payload", "1")
	r := s.cli("submit", "--type", "x", "--idempotency-key", "k", "--payload", "1")
	r.want(t, 0, first, "submitted with this key before")
	s.cli("submit", "--type", "x", "--idempotency-key", "k", "--payload", "2").want(t, 1, "", "conflict")
}

func TestJobsArePaged(t *testing.T) {
	s := serving(t)
	var ids []string
	for range 5 {
		ids = append(ids, s.must("submit", "--type", "x"))
	}
	s.cli("jobs", "--limit", "2").want(t, 0, ids[1], "there are more")
	all := s.must("jobs", "--limit", "2", "--all")
	last := -1
	for _, id := range ids {
		at := strings.Index(all, id)
		if at <= last {
			t.Fatalf("jobs --all printed\n%s\nwant %v in this order", all, ids)
		}
		last = at
	}
}

// TestFollowOverARestart: the server dies, or ends properly, while logs are followed; each line comes once.
func TestFollowOverARestart(t *testing.T) {
	for name, end := range map[string]func(*server){"kill": (*server).kill, "stop": (*server).stop} {
		t.Run(name, func(t *testing.T) {
			s := serving(t)
			a := link(t, s)
			job := s.must("submit", "--type", "shell")
			run := a.take()
			run.ship(0, out("line 0"), out("line 1"))
			f := start(t, s.args("logs", "--follow", job)...)
			f.stdout.waitFor(t, "line 1\n")
			end(s)
			f.stderr.waitFor(t, "trying to reach it")
			s.start()
			run.ship(2, out("line 2"), protocol.Record{Gap: 2, Reason: "damaged"})
			f.stdout.waitFor(t, "damaged")
			run.complete(protocol.Completion{Outcome: protocol.Succeeded, LogRecords: 6})
			// The job is over, its log isn't.
			run.ship(5, out("line 5"))
			if code := f.wait(t); code != 0 {
				t.Errorf("exit code: got %d, want 0\n%s", code, f.stderr)
			}
			want := "line 0\nline 1\nline 2\n[gap: 2 records lost: damaged]\nline 5\n"
			if got := f.stdout.String(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// Followed logs go on with the next attempt; with --attempt they don't.
func TestFollowOverAttempts(t *testing.T) {
	s := serving(t)
	a := link(t, s)
	job := s.must("submit", "--type", "shell", "--retry-on", "failed", "--max-attempts", "2")
	all := start(t, s.args("logs", "-f", job)...)
	first := a.take()
	first.ship(0, out("first"))
	one := start(t, s.args("logs", "-f", job, "--attempt", "1")...)
	one.stdout.waitFor(t, "first")
	first.complete(protocol.Completion{Outcome: protocol.Failed, ExitCode: 1, LogRecords: 1})
	second := a.take()
	second.ship(0, out("second"))
	second.complete(protocol.Completion{Outcome: protocol.Succeeded, LogRecords: 1})
	if code, got := one.wait(t), one.stdout.String(); code != 0 || got != "first\n" {
		t.Errorf("--attempt 1: got %d, %q, want 0, first", code, got)
	}
	if code, got := all.wait(t), all.stdout.String(); code != 0 || got != "first\nsecond\n" {
		t.Errorf("all: got %d, %q, want 0, first and second", code, got)
	}
	s.cli("logs", "-f", job, "--attempt", "9").want(t, 1, "", "not_found")
}

// The command's text is the server's own, byte for byte, also where lines interleave.
func TestTextIsTheServers(t *testing.T) {
	s := serving(t)
	a := link(t, s)
	job := s.must("submit", "--type", "shell")
	run := a.take()
	records := []protocol.Record{
		{Stream: protocol.Stdout, Text: "out begins, ", Part: true},
		errLine("err in between"),
		{Stream: protocol.Stderr, Text: "err begins, ", Part: true},
		{Stream: protocol.Remark, Text: "a remark"},
		{Stream: protocol.Stdout, Text: "out ends"},
		{Stream: protocol.Stderr, Bytes: []byte{0xff, 0xfe}},
		{Gap: 1, Reason: "deadLetter"},
		{Gap: 7, Reason: "what \"ever\n"},
		{Gap: 7},
		{Stream: protocol.Stdout, Text: "no newline", EOF: true},
		{Stream: protocol.Stderr, Text: "nor here", EOF: true},
		{Stream: protocol.Remark, Text: "the end"},
	}
	run.ship(0, records...)
	run.complete(protocol.Completion{Outcome: protocol.Succeeded, LogRecords: 24})
	token, err := os.ReadFile(s.token)
	if err != nil {
		t.Fatal(err)
	}
	want := get(t, s.url+"/api/v1/jobs/"+job+"/logs?format=text", strings.TrimSpace(string(token)))
	if !strings.Contains(want, "out begins, out ends\nerr in between\n") {
		t.Fatalf("the server's text: %q", want)
	}
	for _, args := range [][]string{{job}, {job, "--follow"}} {
		if got := s.cli("logs", args...); got.code != 0 || got.stdout != want {
			t.Errorf("logs %v: got %d\n%q\nwant\n%q", args, got.code, got.stdout, want)
		}
	}
	var raw []string
	for l := range strings.SplitSeq(strings.TrimSpace(get(t, s.url+"/api/v1/jobs/"+job+"/logs?format=ndjson", strings.TrimSpace(string(token)))), "\n") {
		raw = append(raw, canonical(t, l))
	}
	for i, l := range strings.Split(s.must("logs", job, "--json"), "\n") {
		if got := canonical(t, l); got != raw[i] {
			t.Errorf("record %d: got %s, want %s", i, got, raw[i])
		}
	}
}

func TestServeEndsHoldsAtSIGTERM(t *testing.T) {
	s := serving(t)
	job := s.must("submit", "--type", "nobody")
	f := start(t, s.args("logs", "-f", job, "--give-up", "1ms")...)
	f.stderr.waitFor(t, "waiting: ")
	s.p.signal(t, syscall.SIGTERM)
	if code := s.p.wait(t); code != 0 {
		t.Errorf("serve: got %d, want 0\n%s", code, s.p.stderr)
	}
	if code := f.wait(t); code != exitUnreachable {
		t.Errorf("logs: got %d, want %d\n%s", code, exitUnreachable, f.stderr)
	}
}
