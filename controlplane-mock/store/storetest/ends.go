package storetest

import (
	"strconv"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

var endRules = []rule{
	{"an outcome settles job and attempt, and says how", func(e *env) {
		for _, c := range []struct {
			o    protocol.Outcome
			want store.Status
		}{
			{protocol.Succeeded, store.JobSucceeded}, {protocol.Failed, store.JobFailed},
			{protocol.Cancelled, store.JobCancelled}, {protocol.TimedOut, store.JobTimedOut}, {protocol.Lost, store.JobFailed},
		} {
			id := e.submit(func(n *store.NewJob) { n.RetryOn = nil })
			r := e.start(id)
			e.ok(e.Complete(e.ctx, r, protocol.Completion{Outcome: c.o, ExitCode: 3, Signal: "SIGKILL", Error: "why", Result: []byte(`{"r": 1}`), LogRecords: 5}))
			e.restart()
			a := e.wantJob(id, c.want, store.AttemptState(c.o)).Attempts[0]
			equal(e, "exit code", a.ExitCode, 3)
			equal(e, "signal", a.Signal, "SIGKILL")
			equal(e, "error", a.Error, "why")
			equal(e, "result", string(a.Result), `{"r": 1}`)
			equal(e, "log records", *a.LogRecords, 5)
			equal(e, "complete log", a.LogsComplete(), false)
		}
	}},
	{"the same outcome again is fine for ever, another is a lost lease", func(e *env) {
		id := e.submit(func(n *store.NewJob) { n.RetryOn = []protocol.Outcome{protocol.Failed} })
		r := e.start(id)
		e.ok(e.complete(r, protocol.Failed))
		e.ok(e.complete(r, protocol.Failed))
		e.wantErr(e.complete(r, protocol.Succeeded), store.ErrLeaseLost)
		second := e.start(id) // given on
		e.restart()
		e.ok(e.complete(r, protocol.Failed))
		e.wantErr(e.complete(r, protocol.Succeeded), store.ErrLeaseLost)
		_, err := e.Renew(e.ctx, r, e.ttl, store.Beat{})
		e.wantErr(err, store.ErrLeaseLost)
		e.ok(e.complete(second, protocol.Succeeded))
		e.ok(e.complete(r, protocol.Failed))
		e.wantJob(id, store.JobSucceeded, store.AttemptFailed, store.AttemptSucceeded)
	}},
	{"what is in retryOn is tried again while attempts are left, anything else is final", func(e *env) {
		for _, o := range []protocol.Outcome{protocol.Lost, protocol.Failed, protocol.TimedOut} {
			final := map[protocol.Outcome]store.Status{protocol.Lost: store.JobFailed, protocol.Failed: store.JobFailed, protocol.TimedOut: store.JobTimedOut}[o]
			id := e.submit(func(n *store.NewJob) { n.RetryOn, n.MaxAttempts = []protocol.Outcome{o}, 2 })
			e.ok(e.complete(e.start(id), o))
			e.wantJob(id, store.Pending, store.AttemptState(o))
			e.ok(e.complete(e.start(id), o))
			e.wantJob(id, final, store.AttemptState(o), store.AttemptState(o))
			other := e.submit(func(n *store.NewJob) { n.RetryOn = nil })
			e.ok(e.complete(e.start(other), o))
			e.wantJob(other, final, store.AttemptState(o))
		}
	}},
	{"an offer that is completed without being accepted uses an attempt", func(e *env) {
		id := e.submit(func(n *store.NewJob) { n.RetryOn, n.MaxAttempts = []protocol.Outcome{protocol.Failed}, 2 })
		e.ok(e.complete(e.lease(id), protocol.Failed))
		e.ok(e.complete(e.lease(id), protocol.Failed))
		e.wantJob(id, store.JobFailed, store.AttemptFailed, store.AttemptFailed)
	}},
	{"a release gives the job back at once, uses no attempt, and may be repeated", func(e *env) {
		id := e.submit(func(n *store.NewJob) { n.MaxAttempts = 1 })
		offered := e.lease(id)
		e.ok(e.Release(e.ctx, offered, "draining"))
		e.ok(e.Release(e.ctx, offered, "draining"))
		accepted := e.start(id)
		e.ok(e.Release(e.ctx, accepted, "draining"))
		e.wantJob(id, store.Pending, store.AttemptReleased, store.AttemptReleased)
		_, err := e.Renew(e.ctx, accepted, e.ttl, store.Beat{})
		e.wantErr(err, store.ErrLeaseLost)
		e.wantErr(e.complete(accepted, protocol.Failed), store.ErrLeaseLost)
		r := e.start(id)
		e.ok(e.Release(e.ctx, accepted, "draining")) // also when it was given on
		e.ok(e.complete(r, protocol.Lost))
		e.wantErr(e.Release(e.ctx, r, ""), store.ErrLeaseLost)
		e.wantJob(id, store.JobFailed, store.AttemptReleased, store.AttemptReleased, store.AttemptLost)
	}},
	{"a release of a job whose cancel was asked for cancels it", func(e *env) {
		id := e.submit()
		r := e.start(id)
		_, err := e.Cancel(e.ctx, id, "no more")
		e.ok(err)
		e.ok(e.Release(e.ctx, r, "draining"))
		e.ok(e.Release(e.ctx, r, "draining"))
		j := e.wantJob(id, store.JobCancelled, store.AttemptReleased)
		equal(e, "reason", j.Reason, "no more")
	}},
	{"a cancel ends a pending or offered job at once", func(e *env) {
		pending := e.submit()
		j, err := e.Cancel(e.ctx, pending, "first")
		e.ok(err)
		equal(e, "status", j.Status, store.JobCancelled)
		equal(e, "reason", j.Reason, "first")
		_, err = e.Lease(e.ctx, e.params("a", "p"))
		e.wantErr(err, store.ErrNoJob)
		offered := e.submit()
		r := e.lease(offered)
		_, err = e.Cancel(e.ctx, offered, "")
		e.ok(err)
		e.wantJob(offered, store.JobCancelled, store.AttemptCancelled)
		_, err = e.Renew(e.ctx, r, e.ttl, store.Beat{})
		e.wantErr(err, store.ErrLeaseLost)
		e.pass(3)
		e.reap(0)
	}},
	{"a running job is asked to end: the first reason wins, and its lease can be renewed", func(e *env) {
		id := e.submit()
		r := e.start(id)
		for _, reason := range []string{"first", "second"} {
			j, err := e.Cancel(e.ctx, id, reason)
			e.ok(err)
			equal(e, "status", j.Status, store.Running)
			equal(e, "asked", j.CancelRequested, true)
			equal(e, "reason", j.CancelReason, "first")
		}
		e.restart()
		l, err := e.Renew(e.ctx, r, e.ttl, store.Beat{})
		e.ok(err)
		equal(e, "reason", l.CancelReason, "first")
	}},
	{"a cancel changes nothing about a settled job", func(e *env) {
		id := e.submit()
		e.ok(e.complete(e.start(id), protocol.Succeeded))
		j, err := e.Cancel(e.ctx, id, "late")
		e.ok(err)
		equal(e, "status", j.Status, store.JobSucceeded)
		equal(e, "asked", j.CancelRequested, false)
	}},
	{"once a cancel was asked for nothing is retried, success is success and lost is cancelled", func(e *env) {
		for o, want := range map[protocol.Outcome]store.Status{
			protocol.Succeeded: store.JobSucceeded, protocol.Failed: store.JobFailed, protocol.TimedOut: store.JobTimedOut,
			protocol.Lost: store.JobCancelled, protocol.Cancelled: store.JobCancelled,
		} {
			id := e.submit(func(n *store.NewJob) {
				n.RetryOn = []protocol.Outcome{protocol.Lost, protocol.Failed, protocol.TimedOut}
			})
			r := e.start(id)
			_, err := e.Cancel(e.ctx, id, "")
			e.ok(err)
			e.ok(e.complete(r, o))
			e.wantJob(id, want, store.AttemptState(o))
		}
	}},
	{"a retry gives a settled job that didn't succeed one more attempt and clears its cancel", func(e *env) {
		id := e.submit(func(n *store.NewJob) { n.MaxAttempts = 1 })
		for _, want := range []error{store.ErrConflict, nil} {
			_, err := e.Retry(e.ctx, id)
			if want != nil {
				e.wantErr(err, want) // pending
				r := e.start(id)
				_, err = e.Retry(e.ctx, id)
				e.wantErr(err, want) // running
				_, err = e.Cancel(e.ctx, id, "no")
				e.ok(err)
				e.ok(e.complete(r, protocol.Cancelled))
				continue
			}
			e.ok(err)
		}
		j := e.wantJob(id, store.Pending, store.AttemptCancelled)
		equal(e, "asked", j.CancelRequested, false)
		equal(e, "reasons", j.Reason+j.CancelReason, "")
		e.restart()
		e.ok(e.complete(e.start(id), protocol.Lost))
		e.wantJob(id, store.JobFailed, store.AttemptCancelled, store.AttemptLost)
		_, err := e.Retry(e.ctx, id)
		e.ok(err)
		e.ok(e.complete(e.start(id), protocol.Succeeded))
		_, err = e.Retry(e.ctx, id)
		e.wantErr(err, store.ErrConflict)
	}},
}

var reaperRules = []rule{
	{"an offer that isn't accepted in time lapses and uses no attempt", func(e *env) {
		id := e.submit(func(n *store.NewJob) { n.MaxAttempts = 1 })
		var want []store.AttemptState
		for range 3 {
			r := e.lease(id)
			e.pass(1)
			e.reap(1)
			_, err := e.Renew(e.ctx, r, e.ttl, store.Beat{})
			e.wantErr(err, store.ErrLeaseLost)
			want = append(want, store.AttemptLapsed)
		}
		e.wantJob(id, store.Pending, want...)
	}},
	{"a lease that runs out ends the attempt as lost, and the job is tried again while attempts are left", func(e *env) {
		id := e.submit(func(n *store.NewJob) { n.MaxAttempts = 2 })
		e.pass(1) // the time to spare after a start
		r := e.start(id)
		e.pass(0.8)
		e.reap(0)
		e.pass(0.2)
		e.reap(1)
		e.wantJob(id, store.Pending, store.AttemptLost)
		_, err := e.Renew(e.ctx, r, e.ttl, store.Beat{})
		e.wantErr(err, store.ErrLeaseLost)
		e.start(id)
		e.pass(1)
		e.reap(1)
		j := e.wantJob(id, store.JobFailed, store.AttemptLost, store.AttemptLost)
		equal(e, "has a reason", j.Reason != "", true)
		e.reap(0)
	}},
	{"a renewal keeps the lease from the reaper", func(e *env) {
		id := e.submit()
		r := e.start(id)
		for range 4 {
			e.pass(0.6)
			e.accept(r)
			e.reap(0)
		}
		e.pass(1)
		e.reap(1)
	}},
	{"J4: a completion that comes before the reaper acts wins", func(e *env) {
		id := e.submit()
		r := e.start(id)
		e.pass(3)
		e.ok(e.complete(r, protocol.Succeeded))
		e.reap(0)
		e.wantJob(id, store.JobSucceeded, store.AttemptSucceeded)
	}},
	{"lost for an attempt that the reaper ended as lost is fine and sets the log's length", func(e *env) {
		id := e.submit()
		r := e.start(id)
		e.pass(1)
		e.reap(1)
		if a := e.job(id).Attempts[0]; a.LogRecords != nil {
			e.Fatalf("the length of a lost attempt's log is %d, want unknown", *a.LogRecords)
		}
		e.start(id) // given on
		e.wantErr(e.complete(r, protocol.Succeeded), store.ErrLeaseLost)
		e.ok(e.complete(r, protocol.Lost))
		e.ok(e.complete(r, protocol.Lost))
		a := e.wantJob(id, store.Running, store.AttemptLost, store.AttemptRunning).Attempts[0]
		equal(e, "log records", *a.LogRecords, 5)
	}},
	{"a cancel that is never confirmed ends as lost and cancelled", func(e *env) {
		id := e.submit()
		e.start(id)
		_, err := e.Cancel(e.ctx, id, "no more")
		e.ok(err)
		e.pass(1)
		e.reap(1)
		j := e.wantJob(id, store.JobCancelled, store.AttemptLost)
		equal(e, "reason", j.Reason, "no more")
	}},
	{"J11: after a restart a lease has one full TTL more, and then ends", func(e *env) {
		a, b := e.submit(), e.submit()
		r := e.start(a)
		e.lease(b)
		e.pass(0.9)
		e.restart()
		e.reap(0)
		e.pass(0.6) // the lease as it was has run out
		e.reap(0)
		e.accept(r)
		e.pass(0.5)
		e.reap(1) // the offer, spared one TTL; the renewed one has time left
		e.wantJob(a, store.Running, store.AttemptRunning)
		e.wantJob(b, store.Pending, store.AttemptLapsed)
		e.pass(0.5)
		e.reap(1)
		e.wantJob(a, store.Pending, store.AttemptLost)
	}},
	{"Rest spares all leases for its time", func(e *env) {
		a, b := e.submit(), e.submit()
		e.start(a)
		e.lease(b)
		e.Rest(3 * e.ttl)
		e.pass(2)
		e.reap(0)
		e.Rest(e.ttl / 2) // a shorter one doesn't cut a longer one short
		e.pass(0.8)
		e.reap(0)
		e.pass(0.2)
		e.reap(2)
	}},
	{"many leases end in one sweep", func(e *env) {
		const n = 80 // more than one transaction's worth
		for range n {
			e.lease(e.submit())
		}
		e.Rest(0)
		e.pass(1)
		e.reap(n)
		items, _, err := e.Jobs(e.ctx, store.JobFilter{Status: store.Pending})
		e.ok(err)
		equal(e, "pending", strconv.Itoa(len(items)), strconv.Itoa(n))
	}},
}
