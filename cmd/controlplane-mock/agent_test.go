package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"net/http"
	"net/url"
	"testing"
	"time"

	"agentd/agent/protocol"
)

// agent is an agent by hand: the test says what it does and when.
type agent struct {
	t   *testing.T
	c   *protocol.Client
	key string // API key
	id  string
}

func link(t *testing.T, s *server) *agent {
	t.Helper()
	return linkWith(t, s, protocol.ClientConfig{Server: s.url})
}

func linkWith(t *testing.T, s *server, cfg protocol.ClientConfig) *agent {
	t.Helper()
	a := &agent{t: t}
	cfg.ProcessID, cfg.Credential = "boot."+rand.Text(), func() string { return a.key }
	cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	var err error
	if a.c, err = protocol.NewClient(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.c.Close)
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := a.c.Challenge(t.Context(), protocol.ChallengeRequest{PublicKey: pub})
	if err != nil {
		t.Fatal(err)
	}
	req := protocol.LinkRequest{
		Name: "by-hand", Labels: map[string]string{"region": "eu-1"}, Types: []string{"shell"}, Connectors: []string{},
		Version: "0.0.1", OS: "linux", Arch: "amd64", ProcessID: cfg.ProcessID, Start: true,
	}
	protocol.SignLink(&req, priv, ch)
	l, _, err := a.c.Link(t.Context(), s.must("token"), req)
	if err != nil {
		t.Fatal(err)
	}
	a.key, a.id = l.APIKey, l.AgentID
	return a
}

// attempt is an accepted job.
type attempt struct {
	*protocol.Job
	a *agent
}

// take polls a job and accepts it.
func (a *agent) take() *attempt {
	a.t.Helper()
	job, err := a.c.NextJob(a.t.Context(), protocol.PollRequest{PollID: rand.Text(), Wait: 30 * time.Second, Types: []string{"shell"}})
	if err != nil || job == nil {
		a.t.Fatalf("poll: got %v, %v, want a job", job, err)
	}
	t := &attempt{job, a}
	t.beat(0)
	return t
}

func (t *attempt) beat(wait time.Duration) protocol.Heartbeat {
	t.a.t.Helper()
	hb, err := t.a.c.Heartbeat(t.a.t.Context(), t.ID, wait, protocol.HeartbeatRequest{Attempt: t.Attempt, LeaseToken: t.LeaseToken})
	if err != nil {
		t.a.t.Fatal(err)
	}
	return hb
}

// cancelled waits until the server asks for the job's end, and returns why.
func (t *attempt) cancelled() string {
	t.a.t.Helper()
	ctx, cancel := context.WithTimeout(t.a.t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		if hb := t.beat(time.Second); hb.Cancel != nil {
			return hb.Cancel.Reason
		}
	}
	t.a.t.Fatal("nobody cancelled the job")
	return ""
}

func (t *attempt) ref() protocol.AttemptRef {
	return protocol.AttemptRef{JobID: t.ID, Attempt: t.Attempt, LeaseToken: t.LeaseToken}
}

// ship sends records from number first on.
func (t *attempt) ship(first int64, records ...protocol.Record) {
	t.a.t.Helper()
	body := protocol.LogBody{First: first}
	var raw []byte
	for _, r := range records {
		if r.Time == 0 {
			r.Time = 1_732_888_888_123_456
		}
		raw = protocol.AppendRecord(raw, r)
		body.Count += r.Numbers()
	}
	body.Frames = [][]byte{raw}
	if _, err := t.a.c.ShipLog(t.a.t.Context(), t.ref(), body); err != nil {
		t.a.t.Fatal(err)
	}
}

func (t *attempt) complete(c protocol.Completion) {
	t.a.t.Helper()
	c.Attempt, c.LeaseToken, c.FinishedAt = t.Attempt, t.LeaseToken, time.Now()
	c.StartedAt = c.FinishedAt.Add(-1500 * time.Millisecond)
	if err := t.a.c.Complete(t.a.t.Context(), t.ID, c); err != nil {
		t.a.t.Fatal(err)
	}
}

func out(text string) protocol.Record { return protocol.Record{Stream: protocol.Stdout, Text: text} }
func errLine(text string) protocol.Record {
	return protocol.Record{Stream: protocol.Stderr, Text: text}
}
