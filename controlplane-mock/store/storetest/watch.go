package storetest

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// watch collects events until the test ends, and answers a function that waits for one. What an event says that a job wants
// is compared when the event comes with it.
func (e *env) watch() (await func(want store.Event)) {
	ctx, cancel := context.WithCancel(e.ctx)
	events := make(chan store.Event, 1000)
	var wg sync.WaitGroup
	s := e.Store
	wg.Go(func() {
		if err := s.Watch(ctx, func(ev store.Event) { events <- ev }); err != nil {
			e.Errorf("Watch: got %v, want nil", err)
		}
	})
	e.Cleanup(func() { cancel(); wg.Wait() })
	await = func(want store.Event) {
		e.Helper()
		for got := range events {
			if got.Wants != nil && want.Wants == nil {
				got.Wants = nil
			}
			if reflect.DeepEqual(got, want) {
				return
			}
		}
	}
	await(store.Event{Kind: store.EventResync})
	return await
}

var storeRules = []rule{
	{"the server's id and its secrets are made once and stay", func(e *env) {
		id, err := e.ServerID(e.ctx)
		e.ok(err)
		a, err := e.Secret(e.ctx, "a")
		e.ok(err)
		b, err := e.Secret(e.ctx, "b")
		e.ok(err)
		equal(e, "size", len(a), 32)
		equal(e, "differ", string(a) != string(b), true)
		e.restart()
		id2, err := e.ServerID(e.ctx)
		e.ok(err)
		equal(e, "id", id2, id)
		a2, err := e.Secret(e.ctx, "a")
		e.ok(err)
		equal(e, "secret", string(a2), string(a))
		if len(id) == 0 || len(id) > 64 {
			e.Fatalf("id %q, want 1 to 64 characters", id)
		}
	}},
	{"Watch tells of each change after it can be seen", func(e *env) {
		await := e.watch()
		id := e.submit()
		await(store.Event{Kind: store.EventJobPending, JobID: id})
		r := e.start(id)
		await(store.Event{Kind: store.EventJobChanged, JobID: id})
		e.appendLog(r, batch(0, 3), 3)
		await(store.Event{Kind: store.EventLogAppended, JobID: id, Attempt: 1})
		_, err := e.Cancel(e.ctx, id, "")
		e.ok(err)
		await(store.Event{Kind: store.EventJobChanged, JobID: id})
		e.ok(e.complete(r, protocol.Failed))
		await(store.Event{Kind: store.EventJobChanged, JobID: id})
		_, err = e.Retry(e.ctx, id)
		e.ok(err)
		await(store.Event{Kind: store.EventJobPending, JobID: id})
		agent, _ := e.first("one", "p")
		await(store.Event{Kind: store.EventAgentChanged, AgentID: agent})
		_, err = e.SetRevoked(e.ctx, agent, true)
		e.ok(err)
		await(store.Event{Kind: store.EventAgentChanged, AgentID: agent})
		e.ok(e.Ping(e.ctx))
	}},
	{"an event says what a pending job wants, or nothing", func(e *env) {
		var events sync.Map
		ctx, cancel := context.WithCancel(e.ctx)
		var wg sync.WaitGroup
		s, told := e.Store, make(chan string, 1000)
		wg.Go(func() {
			_ = s.Watch(ctx, func(ev store.Event) {
				if ev.Kind == store.EventJobPending {
					events.Store(ev.JobID, ev.Wants)
				}
				told <- ev.JobID
			})
		})
		e.Cleanup(func() { cancel(); wg.Wait() })
		<-told // the first resync
		for _, labels := range []int{0, 3, 64} {
			want := store.Wants{Type: "x", AgentID: "agent_7"}
			if labels > 0 {
				want.Labels = map[string]string{}
			}
			for i := range labels {
				want.Labels[fmt.Sprintf("label %0100d", i)] = strings.Repeat("v", 100)
			}
			id := e.submit(func(n *store.NewJob) { n.AgentID, n.Labels = want.AgentID, want.Labels })
			for got := range told {
				if got == id {
					break
				}
			}
			got, ok := events.Load(id)
			if !ok {
				e.Fatalf("no event of a pending job with %d labels", labels)
			}
			if wants, ok := got.(*store.Wants); !ok || wants != nil && !reflect.DeepEqual(*wants, want) {
				e.Fatalf("got %+v, want %+v", got, want)
			}
		}
	}},
	{"a closed store says so", func(e *env) {
		id := e.submit()
		e.ok(e.Close())
		_, err := e.Lease(e.ctx, e.params("a", "p"))
		e.wantErr(err, store.ErrStopped)
		_, err = e.Renew(e.ctx, ref("a", id, 1), e.ttl, store.Beat{})
		e.wantErr(err, store.ErrStopped)
		_, err = e.AppendLog(e.ctx, ref("a", id, 1), batch(0, 1))
		e.wantErr(err, store.ErrStopped)
		_, err = e.Authenticate(e.ctx, sum("k"))
		e.wantErr(err, store.ErrStopped)
		_, err = e.Job(e.ctx, id)
		e.wantErr(err, store.ErrStopped)
		e.wantErr(e.Ping(e.ctx), store.ErrStopped)
		e.ok(e.Close())
	}},
}
