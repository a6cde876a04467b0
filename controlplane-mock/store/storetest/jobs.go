package storetest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

var jobRules = []rule{
	{"a submitted job is pending and reads back as it was given", func(e *env) {
		n := store.NewJob{
			ID: "job_a", Type: "x", Payload: []byte(`{"b": [1, 2],  "html": "<&>"}`), Env: map[string]string{"K": "V"}, AgentID: "a",
			Labels: map[string]string{"gpu": "1"}, MaxAttempts: 4, RetryOn: []protocol.Outcome{protocol.Lost, protocol.Failed},
			Timeout: time.Minute, Grace: time.Second, Exclusive: true, BodySum: sum("body"),
		}
		got, created, err := e.Submit(e.ctx, n)
		e.ok(err)
		equal(e, "created", created, true)
		for _, restart := range []bool{false, true} {
			if restart {
				e.restart()
			}
			equal(e, "status", got.Status, store.Pending)
			equal(e, "payload", string(got.Payload), string(n.Payload))
			equal(e, "job", fmt.Sprintf("%+v", got.NewJob), fmt.Sprintf("%+v", n))
			equal(e, "has a time", got.CreatedAt.IsZero(), false)
			got = e.job("job_a")
		}
	}},
	{"the same idempotency key and body is the first job, another body a conflict", func(e *env) {
		n := store.NewJob{ID: "job_a", Type: "x", Payload: []byte(`1`), MaxAttempts: 1, IdempotencyKey: "k", BodySum: sum("body")}
		_, created, err := e.Submit(e.ctx, n)
		e.ok(err)
		equal(e, "created", created, true)
		e.restart()
		n.ID = "job_b"
		j, created, err := e.Submit(e.ctx, n)
		e.ok(err)
		equal(e, "created", created, false)
		equal(e, "id", j.ID, "job_a")
		n.BodySum = sum("another")
		_, _, err = e.Submit(e.ctx, n)
		e.wantErr(err, store.ErrConflict)
	}},
	{"an unknown job is not found", func(e *env) {
		_, err := e.Job(e.ctx, "job_x")
		e.wantErr(err, store.ErrNotFound)
		_, err = e.Cancel(e.ctx, "job_x", "")
		e.wantErr(err, store.ErrNotFound)
		_, err = e.Retry(e.ctx, "job_x")
		e.wantErr(err, store.ErrNotFound)
	}},
	{"a listing is oldest first, in pages, and filtered", func(e *env) {
		for range 7 {
			e.submit()
		}
		e.submit(func(n *store.NewJob) { n.Type = "y" })
		e.submit(func(n *store.NewJob) { n.AgentID = "b" })
		r := e.start("job_1")
		e.ok(e.complete(r, protocol.Succeeded))
		for _, c := range []struct {
			f    store.JobFilter
			want []string
		}{
			{store.JobFilter{}, []string{"job_1", "job_2", "job_3", "job_4", "job_5", "job_6", "job_7", "job_8", "job_9"}},
			{store.JobFilter{Type: "y"}, []string{"job_8"}},
			{store.JobFilter{AgentID: "a"}, []string{"job_1"}},
			{store.JobFilter{AgentID: "b"}, []string{"job_9"}},
			{store.JobFilter{Status: store.JobSucceeded}, []string{"job_1"}},
			{store.JobFilter{Status: store.Pending, Type: "x"}, []string{"job_2", "job_3", "job_4", "job_5", "job_6", "job_7", "job_9"}},
			{store.JobFilter{Status: store.Running}, nil},
		} {
			for _, limit := range []int{1, 2, 3, 9, 100} {
				c.f.Limit, c.f.After = limit, ""
				var got []string
				for {
					items, next, err := e.Jobs(e.ctx, c.f)
					e.ok(err)
					for _, j := range items {
						got = append(got, j.ID)
					}
					if len(items) > limit {
						e.Fatalf("a page of %d has %d", limit, len(items))
					}
					if c.f.After = next; next == "" {
						break
					}
				}
				if !slices.Equal(got, c.want) {
					e.Fatalf("%+v: got %v, want %v", c.f, got, c.want)
				}
			}
		}
	}},
}

var leaseRules = []rule{
	{"the oldest matching pending job goes first, also one that came back", func(e *env) {
		a, b, c := e.submit(), e.submit(), e.submit()
		r := e.lease(a)
		e.lease(b)
		e.ok(e.Release(e.ctx, r, "draining"))
		e.lease(a)
		e.lease(c)
		_, err := e.Lease(e.ctx, e.params("a", "last"))
		e.wantErr(err, store.ErrNoJob)
	}},
	{"a job goes to an agent of its type, its id and all of its labels", func(e *env) {
		typed := e.submit(func(n *store.NewJob) { n.Type = "y" })
		pinned := e.submit(func(n *store.NewJob) { n.AgentID = "b" })
		labelled := e.submit(func(n *store.NewJob) { n.Labels = map[string]string{"gpu": "1", "eu": "yes"} })
		for i, c := range []struct {
			agent, typ string
			labels     map[string]string
			want       string
		}{
			{"a", "x", nil, ""},
			{"a", "x", map[string]string{"gpu": "1"}, ""},
			{"a", "x", map[string]string{"gpu": "2", "eu": "yes"}, ""},
			{"a", "z", map[string]string{"gpu": "1", "eu": "yes"}, ""},
			{"a", "x", map[string]string{"gpu": "1", "eu": "yes", "more": ""}, labelled},
			{"b", "x", nil, pinned},
			{"c", "y", nil, typed},
		} {
			p := e.params(c.agent, strconv.Itoa(i))
			p.Types, p.Labels = []string{"w", c.typ}, maps.Clone(c.labels)
			o, err := e.Lease(e.ctx, p)
			if c.want == "" {
				e.wantErr(err, store.ErrNoJob)
				continue
			}
			e.ok(err)
			equal(e, fmt.Sprint("row ", i), o.Job.ID, c.want)
		}
	}},
	{"an offer carries the job and is attempt 1", func(e *env) {
		id := e.submit(func(n *store.NewJob) { n.Env = map[string]string{"K": "V"} })
		o, err := e.Lease(e.ctx, e.params("a", "p"))
		e.ok(err)
		equal(e, "attempt", o.Attempt, 1)
		equal(e, "payload", string(o.Job.Payload), `{"n": 1}`)
		equal(e, "env", o.Job.Env["K"], "V")
		e.wantJob(id, store.Offered, store.AttemptOffered)
	}},
	{"the same poll gets the same offer again while it is neither accepted nor lapsed, not renewed", func(e *env) {
		id := e.submit()
		e.submit()
		for range 3 {
			o, err := e.Lease(e.ctx, e.params("a", "p"))
			e.ok(err)
			equal(e, "job", o.Job.ID, id)
			equal(e, "attempt", o.Attempt, 1)
			e.pass(0.2)
		}
		e.pass(0.4)
		e.reap(1) // a TTL after the first, not after the last
		e.wantJob(id, store.Pending, store.AttemptLapsed)
	}},
	{"another agent's poll of the same name is another poll", func(e *env) {
		a, b := e.submit(), e.submit()
		o, err := e.Lease(e.ctx, e.params("a", "p"))
		e.ok(err)
		equal(e, "job", o.Job.ID, a)
		o, err = e.Lease(e.ctx, e.params("b", "p"))
		e.ok(err)
		equal(e, "job", o.Job.ID, b)
	}},
	{"the same poll gets the same offer after a restart", func(e *env) {
		id := e.submit()
		e.submit()
		_, err := e.Lease(e.ctx, e.params("a", "p"))
		e.ok(err)
		e.restart()
		o, err := e.Lease(e.ctx, e.params("a", "p"))
		e.ok(err)
		equal(e, "job", o.Job.ID, id)
		equal(e, "attempt", o.Attempt, 1)
	}},
	{"a poll whose offer was accepted gets another job", func(e *env) {
		a, b := e.submit(), e.submit()
		o, err := e.Lease(e.ctx, e.params("a", "p"))
		e.ok(err)
		e.accept(ref("a", a, o.Attempt))
		o, err = e.Lease(e.ctx, e.params("a", "p"))
		e.ok(err)
		equal(e, "job", o.Job.ID, b)
	}},
	{"each offer has a new attempt number", func(e *env) {
		id := e.submit()
		for want := int64(1); want < 4; want++ {
			r := e.lease(id)
			equal(e, "attempt", r.Attempt, want)
			e.ok(e.Release(e.ctx, r, ""))
		}
		e.restart()
		equal(e, "attempt", e.lease(id).Attempt, 4)
	}},
	{"one job goes to exactly one of many callers", func(e *env) {
		const jobs, callers = 20, 64
		for range jobs {
			e.submit()
		}
		type result struct {
			id  string
			err error
		}
		results := make(chan result)
		for i := range callers {
			go func() {
				o, err := e.Lease(e.ctx, e.params("a", strconv.Itoa(i)))
				results <- result{o.Job.ID, err}
			}()
		}
		got := map[string]int{}
		for range callers {
			if r := <-results; r.err == nil {
				got[r.id]++
			} else {
				e.wantErr(r.err, store.ErrNoJob)
			}
		}
		equal(e, "jobs leased", len(got), jobs)
		for id, n := range got {
			equal(e, id, n, 1)
		}
	}},
	{"the first renewal accepts, the next ones extend, and the lease tells of a cancel", func(e *env) {
		id := e.submit()
		r := e.lease(id)
		l, err := e.Renew(e.ctx, r, e.ttl, store.Beat{SpooledBytes: 17})
		e.ok(err)
		equal(e, "lease", l, store.Lease{Grace: 7 * time.Second})
		j := e.wantJob(id, store.Running, store.AttemptRunning)
		equal(e, "accepted", j.Attempts[0].Accepted, true)
		equal(e, "spooled", j.Attempts[0].SpooledBytes, 17)
		_, err = e.Cancel(e.ctx, id, "no more")
		e.ok(err)
		l, err = e.Renew(e.ctx, r, e.ttl, store.Beat{})
		e.ok(err)
		equal(e, "lease", l, store.Lease{CancelRequested: true, CancelReason: "no more", Grace: 7 * time.Second})
	}},
	{"who isn't the holder has lost the lease; only an unknown job is not found", func(e *env) {
		id := e.submit()
		r := e.start(id)
		wrong := func(f func(r *store.Ref)) store.Ref { c := r; f(&c); return c }
		for _, c := range []struct {
			name string
			ref  store.Ref
			want error
		}{
			{"unknown job", wrong(func(r *store.Ref) { r.JobID = "job_x" }), store.ErrNotFound},
			{"number never had", wrong(func(r *store.Ref) { r.Attempt = 9 }), store.ErrLeaseLost},
			{"number that no job has", wrong(func(r *store.Ref) { r.Attempt = -1 }), store.ErrLeaseLost},
			{"another agent", wrong(func(r *store.Ref) { r.AgentID = "b" }), store.ErrLeaseLost},
		} {
			e.Log(c.name)
			_, err := e.Renew(e.ctx, c.ref, e.ttl, store.Beat{})
			e.wantErr(err, c.want)
			e.wantErr(e.complete(c.ref, protocol.Succeeded), c.want)
			e.wantErr(e.Release(e.ctx, c.ref, ""), c.want)
			_, err = e.AppendLog(e.ctx, c.ref, store.LogBatch{Count: 1, Body: []byte("x")})
			e.wantErr(err, store.ErrNotFound)
			_, err = e.LogNext(e.ctx, c.ref)
			e.wantErr(err, store.ErrNotFound)
		}
		e.wantJob(id, store.Running, store.AttemptRunning)
	}},
}
