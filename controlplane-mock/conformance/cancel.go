package conformance

import "time"

var cancelChecks = []Check{
	{"jobs/cancel-pending", secServer, []string{"Pending or offered: ends at once"}, cancelPending, 0},
	{"jobs/cancel-offered", secServer, []string{"Pending or offered: ends at once, and an accept then gets `lease_lost`."}, cancelOffered, 0},
	{"jobs/cancel-running", secServer, []string{"Running: is asked for"}, cancelRunning, 0},
	{"jobs/cancel-never-confirmed", secServer, []string{"if the agent never confirms, the attempt is `lost` and the job `cancelled`."}, cancelNeverConfirmed, 0},
	{"jobs/cancel-settled", secServer, []string{"Settled: no change."}, cancelSettled, 0},
	{"jobs/cancel-first-reason", secServer, []string{"The first reason wins."}, cancelFirstReason, 0},
	{"jobs/cancel-no-retry", secServer, []string{"Once a cancellation was asked for, nothing is retried."}, cancelNoRetry, 0},
}

func cancelPending(p *probe) {
	id := p.submit(nil).str("id")
	f := p.cancel(id, "not needed").must(202)
	p.assert(f.str("status") == "cancelled" && f.str("id") == id, "the answer shows %s as %s; want %s as cancelled", f.str("id"), f.str("status"), id)
	p.assert(p.status(id) == "cancelled", "the job is %s; want cancelled", p.status(id))
	p.agent().poll(0).must(204)
}

func cancelOffered(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	p.cancel(l.job, "not needed").must(202)
	p.assert(p.status(l.job) == "cancelled", "the job is %s after a cancel while offered; want cancelled", p.status(l.job))
	a.beat(l, 0).refused(409, "lease_lost")
	a.poll(0).must(204)
}

func cancelRunning(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	f := p.cancel(l.job, "not needed").must(202)
	p.assert(f.str("status") == "running" && f.bool("cancelRequested"), "status and cancelRequested are %s and %v; want running and true", f.str("status"), f.bool("cancelRequested"))
	beat := a.beat(l, 0).must(200)
	p.assert(!beat.null("cancel") && beat.obj("cancel").str("reason") == "not needed", "the heartbeat's cancel is %s", beat.raw["cancel"])
	a.complete(l, "cancelled", 0).must(200)
	p.assert(p.status(l.job) == "cancelled", "the job is %s; want cancelled", p.status(l.job))
}

func cancelNeverConfirmed(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	p.cancel(l.job, "not needed").must(202)
	p.lapse(l)
	p.assert(p.status(l.job) == "cancelled", "the job is %s after a cancel that was never confirmed; want cancelled", p.status(l.job))
	a.poll(0).must(204)
}

func cancelSettled(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	a.complete(l, "succeeded", 0).must(200)
	f := p.cancel(l.job, "too late").must(202)
	p.assert(f.str("status") == "succeeded" && !f.bool("cancelRequested"), "a settled job is %s with cancelRequested %v after a cancel; want no change", f.str("status"), f.bool("cancelRequested"))
}

func cancelFirstReason(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	p.cancel(l.job, "the first").must(202)
	p.cancel(l.job, "the second").must(202)
	reason := a.beat(l, 0).must(200).obj("cancel").str("reason")
	p.assert(reason == "the first", "the reason is %q; want the first", reason)
	a.complete(l, "cancelled", 0).must(200)
	p.assert(p.job(l.job).str("reason") == "the first", "the job's reason is %q; want the first", p.job(l.job).str("reason"))
}

func cancelNoRetry(p *probe) {
	a := p.agent()
	for _, outcome := range []string{"failed", "timedOut", "lost"} {
		p.submit(map[string]any{"retryOn": []string{"failed", "timedOut", "lost"}, "maxAttempts": 5})
		l := a.start()
		p.cancel(l.job, "x").must(202)
		a.complete(l, outcome, 0).must(200)
		p.assert(p.status(l.job) != "pending", "the job is retried after a cancel and an attempt that was %s", outcome)
	}
	a.poll(0).must(204)
}

var fencingChecks = []Check{
	{"jobs/fencing-token", secServer, []string{"A wrong lease token, another agent's, or an attempt that the job never had: `lease_lost` from job calls"}, fencingToken, 0},
	{"jobs/fencing-over", secServer, []string{"Renewing, accepting, completing, releasing and reaping are compare-and-set on job, attempt and lease token"}, fencingOver, 0},
	{"jobs/fencing-logs", secServer, []string{"`not_found` from log calls"}, fencingLogs, 0},
	{"jobs/unknown-job", secServer, []string{"Job calls say `not_found` only where the job is unknown."}, unknownJob, 0},
	{"jobs/completion-beats-reaper", secServer, []string{"compare-and-set on job, attempt and lease token, each in one transaction."}, completionBeatsReaper, chance},
}

// wrong are three ways of having no right to an attempt.
func (p *probe) wrong(a *agent, l lease) map[string]struct {
	a *agent
	l lease
} {
	type pair = struct {
		a *agent
		l lease
	}
	token, number := l, l
	token.token = l.token[:len(l.token)-1] + map[bool]string{true: "A", false: "B"}[l.token[len(l.token)-1] != 'A']
	number.attempt += 7
	return map[string]pair{"a wrong lease token": {a, token}, "another agent's lease token": {p.agent(), l}, "an attempt that the job never had": {a, number}}
}

func fencingToken(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	for accepted := range 2 {
		if accepted == 1 {
			defer a.kept(l)()
		}
		for what, w := range p.wrong(a, l) {
			for _, r := range []reply{w.a.beat(w.l, 0), w.a.complete(w.l, "succeeded", 0), w.a.release(w.l)} {
				p.assert(r.status == 409 && r.code() == "lease_lost", "%s: %v; want 409 lease_lost", what, r)
			}
		}
		a.beat(l, 0).must(200) // accepted, the second time
	}
	p.assert(p.status(l.job) == "running", "the job is %s; want running", p.status(l.job))
}

func fencingOver(p *probe) {
	a, b := p.agent(), p.agent()
	p.submit(nil)
	l := a.start()
	p.lapse(l)
	m := b.start()
	a.beat(l, 0).refused(409, "lease_lost")
	a.release(l).refused(409, "lease_lost")
	a.complete(l, "succeeded", 0).refused(409, "lease_lost")
	// With the new attempt's number or token the old one's other half is worth nothing.
	mixed := l
	mixed.attempt = m.attempt
	a.beat(mixed, 0).refused(409, "lease_lost")
	mixed = l
	mixed.token = m.token
	a.complete(mixed, "lost", 0).refused(409, "lease_lost")
	b.beat(m, 0).must(200)
	b.complete(m, "succeeded", 0).must(200)
	b.beat(m, 0).refused(409, "lease_lost")
}

func fencingLogs(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	wrong := p.wrong(a, l)
	unknown := l
	unknown.job = p.unique("job")
	wrong["an unknown job"] = struct {
		a *agent
		l lease
	}{a, unknown}
	for what, w := range wrong {
		r := w.a.ship(w.l, batch{count: 1, body: lines(0, 1)})
		p.assert(r.status == 404 && r.code() == "not_found", "%s: %v; want 404 not_found", what, r)
		r = p.agentCall("GET", w.l.logs()+"/next", w.a.apiKey, nil, "Agentd-Lease-Token: "+w.l.token)
		p.assert(r.status == 404 && r.code() == "not_found", "%s: %v; want 404 not_found", what, r)
	}
	p.assert(a.next(l) == 0, "next is %d; want 0", a.next(l))
}

func unknownJob(p *probe) {
	a := p.agent()
	l := lease{job: p.unique("job"), attempt: 1, token: "x"}
	a.beat(l, 0).refused(404, "not_found")
	a.complete(l, "succeeded", 0).refused(404, "not_found")
	a.release(l).refused(404, "not_found")
}

func completionBeatsReaper(p *probe) {
	// As late as it may: whichever comes first, the two agree on what happened.
	a := p.agent()
	for _, late := range []time.Duration{0, p.ttl() / 8, p.ttl() / 3} {
		p.submit(map[string]any{"maxAttempts": 1})
		l := a.start()
		p.pause(p.ttl() + late)
		r := a.complete(l, "succeeded", 0)
		state, status := p.attempt(l.job, l.attempt).str("state"), p.status(l.job)
		switch r.status {
		case 200:
			p.assert(state == "succeeded" && status == "succeeded", "a completion was acknowledged, and the attempt is %s, the job %s", state, status)
		default:
			r.refused(409, "lease_lost")
			p.assert(state == "lost" && status == "failed", "a completion was refused, and the attempt is %s, the job %s", state, status)
		}
	}
}
