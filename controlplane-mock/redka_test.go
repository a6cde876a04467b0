package controlplane

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/redka"
)

// onRedka is a server on the embedded store, in real time. Closing the store is the caller's.
func onRedka(t *testing.T, dir string) (*env, *redka.Store) {
	t.Helper()
	st, err := redka.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return newEnv(t, func(c *Config) { c.Store = st }), st
}

// A restart of the server loses nothing that was answered: keys, offers with their tokens, logs, jobs.
func TestRestartOnTheEmbeddedStore(t *testing.T) {
	dir := t.TempDir()
	var a *agent
	var running, offered protocol.Job
	t.Run("before", func(t *testing.T) {
		e, st := onRedka(t, dir)
		a = e.agent(nil)
		e.submit(map[string]any{"payload": "first"})
		running = a.start()
		wantNext(t, a.ship(running, 0, 5, lines(0, 5)), 5)
		e.submit(map[string]any{"payload": "second"})
		offered = into[protocol.Job](t, a.pollAs(t.Context(), "P", "wait=1&type=extract").want(t, 200, ""))
		e.stop()
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		a.poll("wait=0&type=extract").want(t, 503, protocol.CodeUnavailable)
	})
	t.Run("after", func(t *testing.T) {
		e, st := onRedka(t, dir)
		a.e = e
		again := into[protocol.Job](t, a.pollAs(t.Context(), "P", "wait=1&type=extract").want(t, 200, ""))
		if again.ID != offered.ID || again.LeaseToken != offered.LeaseToken || again.Attempt != offered.Attempt {
			t.Errorf("offer after the restart: %+v; want %+v", again, offered)
		}
		a.on(running, "heartbeat", nil).want(t, 200, "")
		wantNext(t, a.ship(running, 3, 7, lines(3, 7)), 10) // trimmed within the store's transaction
		r := a.ship(running, 11, 1, lines(11, 1)).want(t, 409, protocol.CodeLogGap)
		if p := r.problem(); p.Next == nil || *p.Next != 10 {
			t.Errorf("log_gap: next %v; want 10", p.Next)
		}
		a.complete(running, protocol.Succeeded, 10).want(t, 200, "")
		want := strings.Builder{}
		for i := range 10 {
			fmt.Fprintf(&want, "n=%d\n", i)
		}
		if got := e.text(running.ID, "?follow=true"); got != want.String() {
			t.Errorf("log %q; want %q", got, want.String())
		}
		a.on(offered, "release", nil).want(t, 200, "")
		if v := e.job(offered.ID); v.Status != store.Pending || !strings.HasSuffix(v.Reason, "1 match, all busy") {
			t.Errorf("released: %+v", v)
		}
		e.stop()
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// From the submission to the held poll's answer, and from the cancel to the held heartbeat's: milliseconds, on the real store.
func TestWakesAreFastOnTheEmbeddedStore(t *testing.T) {
	e, st := onRedka(t, t.TempDir())
	a := e.agent(nil)
	var polls, cancels []time.Duration
	for range 30 {
		answered := make(chan time.Time, 1)
		ready := later(func() reply {
			r := a.poll("wait=30&type=extract")
			answered <- time.Now()
			return r
		})
		until(t, "a hold", func() bool { return e.srv.holds.count() > 0 })
		started := time.Now()
		e.submit(nil)
		j := into[protocol.Job](t, (<-ready).want(t, 200, ""))
		polls = append(polls, (<-answered).Sub(started))
		a.on(j, "heartbeat", nil).want(t, 200, "")
		beat := later(func() reply {
			r := a.on(j, "heartbeat?waitMs=3000", nil)
			answered <- time.Now()
			return r
		})
		until(t, "a hold", func() bool { return e.srv.holds.count() > 0 })
		started = time.Now()
		e.admin("POST", "jobs/"+j.ID+"/cancel", nil).want(t, 202, "")
		if hb := into[protocol.Heartbeat](t, (<-beat).want(t, 200, "")); hb.Cancel == nil {
			t.Fatal("the heartbeat was answered without the cancel")
		}
		cancels = append(cancels, (<-answered).Sub(started))
		a.complete(j, protocol.Cancelled, 0).want(t, 200, "")
	}
	for name, took := range map[string][]time.Duration{"submit to poll": polls, "cancel to heartbeat": cancels} {
		slices.Sort(took)
		median := took[len(took)/2]
		t.Logf("%s: median %v, worst %v", name, median, took[len(took)-1])
		if median > 500*time.Millisecond { // generous: this machine may be busy; a wake that never comes takes seconds
			t.Errorf("%s: median %v; want milliseconds", name, median)
		}
	}
	e.stop()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// Many polls and many jobs, each job to exactly one poll.
func TestEachJobGoesToOnePollOnTheEmbeddedStore(t *testing.T) {
	e, st := onRedka(t, t.TempDir())
	const agents, jobs = 8, 60
	got := make(chan string, jobs)
	done := make(chan struct{})
	for range agents {
		a := e.agent(nil)
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				r := a.poll("wait=2&type=extract")
				if r.status != http.StatusOK {
					return
				}
				j := into[protocol.Job](t, r)
				a.complete(j, protocol.Succeeded, 0)
				got <- j.ID
			}
		}()
	}
	want := map[string]bool{}
	for range jobs {
		want[e.submit(nil).ID] = true
	}
	for range agents {
		<-done
	}
	close(got)
	for id := range got {
		if !want[id] {
			t.Errorf("job %s went out twice, or never was", id)
		}
		delete(want, id)
	}
	if len(want) != 0 {
		t.Errorf("%d jobs went to nobody", len(want))
	}
	e.stop()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkShip is the whole way of a body: HTTP, digest, check, durable on the embedded store, answer. MB/s of decoded bytes.
func BenchmarkShip(b *testing.B) {
	const perBody = 16_000 // 3.8 MB decoded, what an agent that is behind puts into one body
	plain := plainLines(perBody, 200)
	for _, enc := range []string{encSnappy, encZstd} {
		b.Run(enc, func(b *testing.B) {
			st, err := redka.Open(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			srv, err := New(Config{Store: st, AdminToken: SumOf(adminToken)})
			if err != nil {
				b.Fatal(err)
			}
			web := httptest.NewServer(srv.Handler())
			defer web.Close()
			defer func() { _ = st.Close() }()
			j, key := benchAttempt(b, st, srv)
			body := encode(b, enc, plain)
			digest := strings.TrimPrefix(digestOf(body), "Content-Digest: ")
			b.SetBytes(int64(len(plain)))
			first, cpu := int64(0), cpuTime(b)
			defer func() {
				b.ReportMetric((cpuTime(b)-cpu).Seconds()/(float64(first/perBody)*float64(len(plain))/1e9), "cpu-s/GB")
			}()
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, web.URL+logPath(j, fmt.Sprintf("?first=%d&count=%d", first, perBody)), bytes.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				req.Header = http.Header{"Authorization": {"Bearer " + key}, "Agentd-Lease-Token": {j.LeaseToken}, "Content-Encoding": {enc}, "Content-Digest": {digest}}
				resp, err := web.Client().Do(req)
				if err != nil {
					b.Fatal(err)
				}
				raw, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				first += perBody
				if want := fmt.Sprintf(`{"next":%d}`, first); string(raw) != want {
					b.Fatalf("%s; want %s", raw, want)
				}
			}
		})
	}
}

// benchAttempt makes an agent and a leased job, past the HTTP side.
func benchAttempt(b *testing.B, st store.Store, srv *Server) (protocol.Job, string) {
	b.Helper()
	ctx := b.Context()
	token, key := SumOf("age_x"), apiKeyPrefix+"bench"
	if err := st.PutToken(ctx, store.Token{Sum: token, TTL: time.Hour, MaxUses: 1}); err != nil {
		b.Fatal(err)
	}
	linked, err := st.Link(ctx, store.LinkParams{Token: &token, NewAgentID: "ag_bench", PublicKey: make([]byte, 32), ProcessID: "p", Start: true, Key: SumOf(key), KeyTTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	if _, _, err := st.Submit(ctx, store.NewJob{ID: "job_bench", Type: "x", MaxAttempts: 1, Payload: []byte("{}")}); err != nil {
		b.Fatal(err)
	}
	secrets, err := srv.secrets(ctx)
	if err != nil {
		b.Fatal(err)
	}
	offer, err := st.Lease(ctx, store.LeaseParams{AgentID: linked.Agent.ID, Types: []string{"x"}, PollID: "p", TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	return srv.wireJob(offer, secrets.leaseToken(offer.Job.ID, offer.Attempt)), key
}
