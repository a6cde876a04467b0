package conformance

import "time"

var offerChecks = []Check{
	{"jobs/offer-members", secPoll, []string{`"timeoutMs":3600000,"graceMs":10000,"exclusive":false,"createdAt":"2026-01-01T00:00:00Z"}`}, offerMembers, 0},
	{"jobs/offer-accepted", secPoll, []string{"**The answer is an offer.** The first heartbeat, with `waitMs=0`, accepts it"}, offerAccepted, 0},
	{"jobs/offer-lapses", secPoll, []string{"An offer that is released, or not accepted within its TTL, goes back to pending."}, offerLapses, 0},
	{"jobs/offer-released", secRelease, []string{"→ `200 {}`, also when repeated.", "pending again at once"}, offerReleased, 0},
	{"jobs/accepted-released", secRelease, []string{"For an offer, or an accepted job that has not started: pending again at once, or `cancelled` if that was asked for."}, acceptedReleased, 0},
	{"jobs/attempt-numbers", secPoll, []string{"Every offer has a new `attempt` number, so the logs of two offers never meet."}, attemptNumbers, 0},
	{"jobs/what-counts", secPoll, []string{"Against `maxAttempts` count accepted attempts that were not released."}, whatCounts, 0},
}

func offerMembers(p *probe) {
	a := p.agent()
	job := p.submit(map[string]any{
		"payload": map[string]any{"a": []any{1, "ä", nil}}, "env": map[string]string{"K": "V"}, "timeoutMs": 3_600_000, "graceMs": 1500, "exclusive": true,
	})
	l := a.take()
	p.assert(l.job == job.str("id") && l.str("type") == p.kind, "the offer is of %s, %s; want %s, %s", l.job, l.str("type"), job.str("id"), p.kind)
	p.assert(l.attempt >= 1 && l.token != "", "attempt is %d and leaseToken %q", l.attempt, l.token)
	p.assert(l.millis("leaseTtlMs") > 0, "leaseTtlMs is %d", l.int("leaseTtlMs"))
	l.json("payload", `{"a":[1,"ä",null]}`)
	l.json("env", `{"K":"V"}`)
	p.assert(l.int("timeoutMs") == 3_600_000 && l.int("graceMs") == 1500 && l.bool("exclusive"), "timeoutMs, graceMs, exclusive are %d, %d, %v; want 3600000, 1500, true",
		l.int("timeoutMs"), l.int("graceMs"), l.bool("exclusive"))
	p.assert(l.time("createdAt").Equal(job.time("createdAt")), "createdAt is %s; the job's is %s", l.str("createdAt"), job.str("createdAt"))
}

func offerAccepted(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	p.assert(p.status(l.job) == "offered", "the job is %s while offered", p.status(l.job))
	p.assert(p.attempt(l.job, l.attempt).str("state") == "offered", "the attempt is %s while offered", p.attempt(l.job, l.attempt).str("state"))
	a.beat(l, 0).must(200)
	p.assert(p.status(l.job) == "running", "the job is %s after the first heartbeat; want running", p.status(l.job))
	t := p.attempt(l.job, l.attempt)
	p.assert(t.str("state") == "running" && t.str("agentId") == a.id, "the attempt is %s at %s; want running at %s", t.str("state"), t.str("agentId"), a.id)
}

func offerLapses(p *probe) {
	a := p.agent()
	p.submit(nil)
	began := time.Now()
	l := a.take()
	p.isState(l, "lapsed", 2*p.ttl()+soon)
	p.assert(time.Since(began) > p.ttl()*9/10, "the offer lapsed after %v; its TTL is %v", time.Since(began), p.ttl())
	p.assert(p.status(l.job) == "pending", "the job is %s after its offer lapsed; want pending", p.status(l.job))
	a.beat(l, 0).refused(409, "lease_lost")
	again := a.take()
	p.assert(again.job == l.job && again.attempt > l.attempt, "after attempt %d of %s came attempt %d of %s", l.attempt, l.job, again.attempt, again.job)
}

func offerReleased(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	a.release(l).must(200)
	p.assert(p.status(l.job) == "pending", "the job is %s after its release; want pending", p.status(l.job))
	p.assert(p.attempt(l.job, l.attempt).str("state") == "released", "the attempt is %s; want released", p.attempt(l.job, l.attempt).str("state"))
	a.release(l).must(200)
	a.beat(l, 0).refused(409, "lease_lost")
	again := a.take()
	a.release(l).must(200)
	a.beat(again, 0).must(200)
}

func acceptedReleased(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	a.release(l).must(200)
	p.assert(p.status(l.job) == "pending", "the job is %s after its release; want pending", p.status(l.job))
	l = a.start()
	p.cancel(l.job, "changed my mind").must(202)
	a.release(l).must(200)
	p.assert(p.status(l.job) == "cancelled", "the job is %s after a cancel was asked for and it was released; want cancelled", p.status(l.job))
	a.poll(0).must(204)
	// What has ended can't be released.
	p.submit(nil)
	l = a.start()
	a.complete(l, "succeeded", 0).must(200)
	a.release(l).refused(409, "lease_lost")
}

func attemptNumbers(p *probe) {
	a := p.agent()
	p.submit(nil)
	last := int64(0)
	for range 4 {
		l := a.take()
		p.assert(l.attempt > last, "attempt %d came after attempt %d", l.attempt, last)
		last = l.attempt
		a.release(l).must(200)
	}
}

func whatCounts(p *probe) {
	a := p.agent()
	p.submit(map[string]any{"maxAttempts": 1, "retryOn": []string{"failed"}})
	a.release(a.take()).must(200)  // an offer
	a.release(a.start()).must(200) // accepted and released
	l := a.take()
	p.isState(l, "lapsed", 2*p.ttl()+soon)
	l = a.start()
	a.complete(l, "failed", 0).must(200)
	p.assert(p.status(l.job) == "failed", "after one accepted attempt of one the job is %s; want failed", p.status(l.job))
}

func (p *probe) cancel(id, reason string) reply {
	return p.adminCall("POST", "jobs/"+id+"/cancel", map[string]any{"reason": reason})
}
