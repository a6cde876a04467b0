package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

func TestPollIsHeldAndAnsweredWithinItsWait(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		for query, want := range map[string]time.Duration{
			"wait=0&type=extract":                          0,
			"wait=7&type=extract":                          7 * time.Second,
			"type=extract":                                 30 * time.Second, // the link's pollWaitMs
			"wait=99&type=extract":                         50 * time.Second, // the cap
			"wait=999999999999999999999999&type=x&type=yy": 50 * time.Second,
		} {
			r := a.poll(query).want(t, 204, "")
			if r.took != want {
				t.Errorf("%s: held for %v; want %v", query, r.took, want)
			}
		}
		if a.link.PollWait != 30_000 {
			t.Errorf("link said pollWaitMs %d; want 30000", a.link.PollWait)
		}
	})
}

func TestPollNeedsItsFields(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		for _, q := range []string{"", "wait=5", "wait=-1&type=x", "wait=1.5&type=x", "wait=x&type=x", "wait=&type=x", "wait=+1&type=x", "type=", "type=%zz", "wait=1;type=x"} {
			a.poll(q).want(t, 400, protocol.CodeInvalid)
		}
		path := "/agent/v1/jobs/next?wait=0&type=extract"
		e.call("GET", path, a.key, nil, "Agentd-Process-Id: "+a.process).want(t, 400, protocol.CodeInvalid)
		e.call("GET", path, a.key, nil, "Agentd-Poll-Id: p").want(t, 400, protocol.CodeInvalid)
		e.call("GET", path, a.key, nil, "Agentd-Poll-Id: a b", "Agentd-Process-Id: "+a.process).want(t, 400, protocol.CodeInvalid)
		long := fmt.Sprintf("Agentd-Poll-Id: %065d", 1)
		e.call("GET", path, a.key, nil, long, "Agentd-Process-Id: "+a.process).want(t, 400, protocol.CodeInvalid)
	})
}

func TestPollWakesForAJob(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		answer := later(func() reply { return a.poll("wait=30&type=load&type=extract") })
		pass(10 * time.Second)
		job := e.submit(map[string]any{"payload": map[string]any{"n": 1}, "env": map[string]string{"K": "V"}, "timeoutMs": 5000, "exclusive": true})
		r := (<-answer).want(t, 200, "")
		if r.took != 10*time.Second {
			t.Errorf("answered after %v; want the moment of the submission, 10s", r.took)
		}
		got := into[protocol.Job](t, r)
		if got.ID != job.ID || got.Type != "extract" || got.Attempt != 1 || got.LeaseToken == "" || got.LeaseTTL != 10_000 ||
			string(got.Payload) != `{"n":1}` || got.Env["K"] != "V" || got.Timeout != 5000 || got.Grace != 10_000 || !got.Exclusive || got.CreatedAt.IsZero() {
			t.Errorf("offer: %+v", got)
		}
	})
}

func TestSamePollIDGetsTheSameOffer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.agent(nil), e.agent(nil)
		e.submit(nil)
		first := into[protocol.Job](t, a.pollAs(t.Context(), "P", "wait=0&type=extract").want(t, 200, ""))
		again := into[protocol.Job](t, a.pollAs(t.Context(), "P", "wait=0&type=extract").want(t, 200, ""))
		if again.ID != first.ID || again.Attempt != first.Attempt || again.LeaseToken != first.LeaseToken {
			t.Errorf("again: %+v; want %+v", again, first)
		}
		a.pollAs(t.Context(), "Q", "wait=0&type=extract").want(t, 204, "")
		b.pollAs(t.Context(), "P", "wait=0&type=extract").want(t, 204, "")
		// Another instance on the same store, as after a restart, derives the same token.
		other := newEnv(t, func(c *Config) { c.Store = e.st })
		b2 := *a
		b2.e = other
		moved := into[protocol.Job](t, b2.pollAs(t.Context(), "P", "wait=0&type=extract").want(t, 200, ""))
		if moved.LeaseToken != first.LeaseToken || moved.Attempt != first.Attempt {
			t.Errorf("on another instance: %+v; want %+v", moved, first)
		}
		// Accepted: the same poll id is a new poll.
		a.on(first, "heartbeat", nil).want(t, 200, "")
		a.pollAs(t.Context(), "P", "wait=0&type=extract").want(t, 204, "")
	})
}

func TestOfferLapsesWithoutUsingAnAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		pass(time.Minute) // the reaper is past its first wait
		job := e.submit(map[string]any{"maxAttempts": 1})
		first := a.lease()
		second := into[protocol.Job](t, a.poll("wait=30&type=extract").want(t, 200, ""))
		if second.ID != job.ID || second.Attempt != 2 || second.LeaseToken == first.LeaseToken {
			t.Errorf("after the lapse: %+v; want attempt 2 with another token", second)
		}
		a.on(first, "heartbeat", nil).want(t, 409, protocol.CodeLeaseLost)
		v := e.job(job.ID)
		if v.Attempts[0].State != store.AttemptLapsed || v.Status != store.Offered {
			t.Errorf("job: %+v", v)
		}
	})
}

func TestPollEndsWhenTheClientGoesAway(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		ctx, cancel := context.WithCancel(t.Context())
		gone := later(func() reply { return a.pollAs(ctx, "P", "wait=50&type=extract") })
		synctest.Wait()
		if n := e.srv.holds.count(); n != 1 {
			t.Fatalf("%d holds; want 1", n)
		}
		cancel()
		<-gone
		synctest.Wait()
		if n := e.srv.holds.count(); n != 0 {
			t.Errorf("%d holds after the client went away; want 0", n)
		}
		job := e.submit(nil)
		if v := e.job(job.ID); v.Status != store.Pending {
			t.Errorf("job is %s; want pending, nobody is there to take it", v.Status)
		}
	})
}

func TestPollsEndWith204AtShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		answer := later(func() reply { return a.poll("wait=50&type=extract") })
		pass(3 * time.Second)
		e.stop()
		if r := (<-answer).want(t, 204, ""); r.took != 3*time.Second {
			t.Errorf("ended after %v; want 3s", r.took)
		}
		r := a.poll("wait=50&type=extract").want(t, 503, protocol.CodeUnavailable)
		if r.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		e.call("GET", "/readyz", "", nil).want(t, 503, protocol.CodeUnavailable)
		e.call("GET", "/healthz", "", nil).want(t, 200, "")
	})
}

// A hundred polls wait; each job is found by one look, not by a hundred.
func TestOneJobWakesOnePoll(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const n = 100
		a := e.agent(nil)
		answers := make(chan reply, n)
		for i := range n {
			go func() { answers <- a.pollAs(t.Context(), fmt.Sprintf("p%d", i), "wait=8&type=extract") }()
		}
		synctest.Wait()
		before := e.mem.leaseCalls()
		for range n / 2 {
			e.submit(nil)
		}
		synctest.Wait()
		if looks := e.mem.leaseCalls() - before; looks > n {
			t.Errorf("%d looks for %d jobs; want about one each", looks, n/2)
		}
		got := map[string]bool{}
		for range n {
			r := <-answers
			if r.status == http.StatusOK {
				got[into[protocol.Job](t, r).ID] = true
				if r.took != 0 {
					t.Errorf("a job after %v", r.took)
				}
			}
		}
		if len(got) != n/2 {
			t.Errorf("%d different jobs were handed out; want %d", len(got), n/2)
		}
	})
}

// Every job finds a poll that may take it, though the polls that wait take different ones, and some go away as they are woken.
func TestNoWakeIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		both := e.agent(map[string]any{"types": []string{"x", "y"}, "labels": map[string]string{"gpu": "1"}})
		onlyY := e.agent(map[string]any{"types": []string{"y"}})
		for round := range 100 {
			ctx, leave := context.WithCancel(t.Context())
			goner := fmt.Sprintf("g%d", round)
			gone := later(func() reply { return both.pollAs(ctx, goner, "wait=8&type=x&type=y") })
			synctest.Wait()
			first := later(func() reply { return both.pollAs(t.Context(), fmt.Sprintf("b%d", round), "wait=8&type=x&type=y") })
			second := later(func() reply { return onlyY.pollAs(t.Context(), fmt.Sprintf("o%d", round), "wait=8&type=y") })
			synctest.Wait()
			leave()
			x := e.submit(map[string]any{"type": "x", "labels": map[string]string{"gpu": "1"}})
			y := e.submit(map[string]any{"type": "y"})
			for _, ch := range []<-chan reply{gone, first, second} {
				if r := <-ch; r.status == http.StatusOK && r.took > 0 {
					t.Fatalf("round %d: a job after %v; want at once", round, r.took)
				}
			}
			for _, id := range []string{x.ID, y.ID} {
				// Before its offer lapses a job is with whoever got it, the one that went away included.
				if v := e.job(id); v.Status != store.Offered {
					t.Fatalf("round %d: job of type %s is %s though a poll for it waited", round, v.Type, v.Status)
				}
				e.admin("POST", "jobs/"+id+"/cancel", nil).want(t, 202, "")
			}
		}
	})
}

func TestJobsGoToMatchingAgentsOldestFirst(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		eu := e.agent(map[string]any{"labels": map[string]string{"region": "eu", "gpu": "1"}})
		us := e.agent(map[string]any{"labels": map[string]string{"region": "us"}})
		pinned := e.submit(map[string]any{"agentId": us.id})
		both := e.submit(map[string]any{"labels": map[string]string{"region": "eu", "gpu": "1"}})
		other := e.submit(map[string]any{"type": "load"})
		open := e.submit(nil)
		late := e.submit(nil)
		for _, tc := range []struct {
			a     *agent
			query string
			want  string
		}{{eu, "type=extract", both.ID}, {eu, "type=extract", open.ID}, {us, "type=extract", pinned.ID}, {us, "type=load", other.ID}, {us, "type=extract", late.ID}} {
			got := into[protocol.Job](t, tc.a.poll("wait=0&"+tc.query).want(t, 200, ""))
			if got.ID != tc.want {
				t.Errorf("%s: got %s; want %s", tc.query, got.ID, tc.want)
			}
		}
		// Held polls, too: only the one that matches is answered.
		wait := later(func() reply { return eu.poll("wait=5&type=extract") })
		synctest.Wait()
		mine := e.submit(map[string]any{"agentId": us.id})
		synctest.Wait()
		if got := us.lease(); got.ID != mine.ID {
			t.Errorf("pinned job: got %s", got.ID)
		}
		(<-wait).want(t, 204, "")
	})
}

// New labels by re-link count for a poll that is held already.
func TestRelinkRelabelsAHeldPoll(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(map[string]any{"labels": map[string]string{"gpu": "1"}})
		answer := later(func() reply { return a.poll("wait=30&type=extract") })
		pass(5 * time.Second)
		a.sendLink("", map[string]any{"start": false, "labels": map[string]string{"gpu": "1"}}).want(t, 200, "")
		r := (<-answer).want(t, 200, "")
		if got := into[protocol.Job](t, r); got.ID != job.ID || r.took != 5*time.Second {
			t.Errorf("got %s after %v; want %s after 5s", got.ID, r.took, job.ID)
		}
	})
}

func TestHoldsAreBounded(t *testing.T) {
	limits := func(c *Config) { c.Limits.Holds, c.Limits.AgentHolds = 3, 2 }
	bubbleWith(t, limits, func(t *testing.T, e *env) {
		a, b := e.agent(nil), e.agent(nil)
		var held []<-chan reply
		hold := func(a *agent, id string) {
			held = append(held, later(func() reply { return a.pollAs(t.Context(), id, "wait=5&type=extract") }))
			synctest.Wait()
		}
		hold(a, "1")
		hold(a, "2")
		r := a.pollAs(t.Context(), "3", "wait=5&type=extract").want(t, 503, protocol.CodeUnavailable)
		if r.header.Get("Retry-After") != "5" {
			t.Errorf("Retry-After %q; want 5", r.header.Get("Retry-After"))
		}
		hold(b, "1")
		b.pollAs(t.Context(), "2", "wait=5&type=extract").want(t, 503, protocol.CodeUnavailable)
		for _, h := range held {
			(<-h).want(t, 204, "")
		}
		// A heartbeat is served without a hold rather than refused.
		e.submit(nil)
		j := a.start()
		held = nil
		hold(a, "4")
		hold(a, "5")
		if r := a.on(j, "heartbeat?waitMs=3000", nil).want(t, 200, ""); r.took != 0 {
			t.Errorf("heartbeat held for %v; want none", r.took)
		}
		for _, h := range held {
			(<-h).want(t, 204, "")
		}
	})
}

// Events may get lost; then the store says so, and everyone looks.
func TestResyncMakesPollsLook(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		answer := later(func() reply { return a.poll("wait=30&type=extract") })
		synctest.Wait()
		e.mem.mu.Lock()
		e.mem.deaf = true
		e.mem.mu.Unlock()
		e.submit(nil)
		pass(3 * time.Second)
		e.srv.onEvent(store.Event{Kind: store.EventResync})
		if r := (<-answer).want(t, 200, ""); r.took < 3*time.Second || r.took > 4*time.Second {
			t.Errorf("answered after %v; want just after 3s", r.took)
		}
	})
}

func TestStoreFaultIsUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.mem.setFault(errors.New("disk on fire at /var/lib/x"))
		r := a.poll("wait=0&type=extract").want(t, 503, protocol.CodeUnavailable)
		if d := r.problem().Detail; d != "the store can't serve now" || r.header.Get("Retry-After") != "1" {
			t.Errorf("detail %q, Retry-After %q", d, r.header.Get("Retry-After"))
		}
		e.call("GET", "/readyz", "", nil).want(t, 503, protocol.CodeUnavailable)
		e.mem.setFault(nil)
		a.poll("wait=0&type=extract").want(t, 204, "")
		e.call("GET", "/readyz", "", nil).want(t, 200, "")
	})
}
