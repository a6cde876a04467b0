package conformance

import (
	"fmt"
	"time"
)

var heartbeatChecks = []Check{
	{"jobs/heartbeat-answer", secBeat, []string{"→ `200 {\"leaseTtlMs\":10000,\"heartbeatMs\":3000,\"cancel\":null}`"}, heartbeatAnswer, 0},
	{"jobs/heartbeat-holds", secBeat, []string{"holds the answer up to `waitMs`"}, heartbeatHolds, 0},
	{"jobs/heartbeat-hold-cap", secBeat, []string{"(at most a third of the TTL)"}, heartbeatHoldCap, 0},
	{"jobs/heartbeat-renews", secBeat, []string{"The server renews the lease when the request arrives"}, heartbeatRenews, 0},
	{"jobs/heartbeat-renews-again", secBeat, []string{"and renews again as it answers."}, heartbeatRenewsAgain, 0},
	{"jobs/heartbeat-cancel-wakes", secBeat, []string{"It answers at once when a cancellation is asked for, so that one arrives in milliseconds"}, heartbeatCancelWakes, 0},
	{"jobs/heartbeat-cancel-anywhere", secBeat, []string{"It answers at once when a cancellation is asked for, so that one arrives in milliseconds"}, heartbeatCancelAnywhere, peers},
	{"jobs/heartbeat-end-wakes", secBeat, []string{"and with `409` when the attempt ends during the hold."}, heartbeatEndWakes, 0},
	{"jobs/heartbeat-cancelled-not-held", secBeat, []string{"Once a cancellation is known it doesn't hold any more"}, heartbeatCancelledNotHeld, 0},
	{"jobs/heartbeat-cancelled-renewed", secBeat, []string{"A cancelled job's lease is renewed as any other: the agent is to have its grace period."}, heartbeatCancelledRenewed, 0},
	{"jobs/heartbeat-spooled", secBeat, []string{"`{\"attempt\":1,\"leaseToken\":\"…\",\"spooledBytes\":0,\"oldestUnshippedMs\":0}`"}, heartbeatSpooled, 0},
}

func heartbeatAnswer(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	for range 2 {
		f := a.beat(l, 0).must(200)
		p.assert(f.int("leaseTtlMs") > 0 && f.int("heartbeatMs") > 0 && f.int("heartbeatMs") < f.int("leaseTtlMs"), "leaseTtlMs and heartbeatMs are %d and %d", f.int("leaseTtlMs"), f.int("heartbeatMs"))
		p.assert(f.null("cancel"), "cancel is %s while nobody asked; want null", f.raw["cancel"])
	}
}

func heartbeatHolds(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	wait := p.ttl() / 4
	p.tries(func() (bool, string) {
		r := a.beat(l, 0)
		r.must(200)
		return r.took < wait, fmt.Sprintf("a heartbeat with waitMs=0 was answered after %v", r.took)
	})
	r := a.beat(l, wait)
	r.must(200)
	p.assert(r.took > wait*9/10, "a heartbeat with waitMs=%d was answered after %v", wait.Milliseconds(), r.took)
}

func heartbeatHoldCap(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	p.tries(func() (bool, string) {
		r := a.beat(l, 20*p.ttl())
		r.must(200)
		return r.took < p.ttl()*2/3, fmt.Sprintf("a heartbeat was held for %v; the TTL is %v, and a third of it is the most", r.took, p.ttl())
	})
}

func heartbeatRenews(p *probe) {
	a := p.agent()
	p.submit(map[string]any{"maxAttempts": 1})
	l := a.start()
	for end := time.Now().Add(3 * p.ttl()); time.Now().Before(end); p.pause(p.ttl() / 5) {
		a.beat(l, 0).must(200)
	}
	p.assert(p.status(l.job) == "running", "the job is %s after heartbeats for three TTLs; want running", p.status(l.job))
}

func heartbeatRenewsAgain(p *probe) {
	a := p.agent()
	// Hold for almost a third of the TTL, and be silent for nearly a whole one after that: 1.27 TTLs after the heartbeat arrived,
	// when the reaper, which comes every quarter, has long been there.
	p.tries(func() (bool, string) {
		p.submit(map[string]any{"maxAttempts": 1})
		l := a.start()
		held := a.beat(l, p.ttl())
		if held.status != 200 || held.took < p.ttl()/4 {
			return false, fmt.Sprintf("%v, after %v", held, held.took)
		}
		p.pause(p.ttl() * 94 / 100)
		r := a.beat(l, 0)
		a.complete(l, "succeeded", 0)
		return r.status == 200, fmt.Sprintf("%.2f TTLs after the answer to a heartbeat that was held for %.2f: %v", 0.94, float64(held.took)/float64(p.ttl()), r)
	})
}

func heartbeatCancelWakes(p *probe) { p.cancelReaches(p.s.t.URL) }

func heartbeatCancelAnywhere(p *probe) {
	for _, peer := range p.s.t.Peers {
		p.cancelReaches(peer)
	}
}

// cancelReaches asks for a cancel while an instance holds the heartbeat. Since a hold is short, what counts is a heartbeat that
// was answered clearly before its hold's end, once in a few tries.
func (p *probe) cancelReaches(base string) {
	a := p.agent()
	hold := p.ttl() / 3
	p.tries(func() (bool, string) {
		p.submit(map[string]any{"graceMs": 1234})
		l := a.start()
		held := p.later(func() reply {
			return p.patient(p.ctx, base, "POST", fmt.Sprintf("/agent/v1/jobs/%s/heartbeat?waitMs=%d", l.job, hold.Milliseconds()), a.apiKey,
				map[string]any{"attempt": l.attempt, "leaseToken": l.token})
		})
		p.pause(hold / 10) // until it is held
		p.cancel(l.job, "not needed").must(202)
		r := p.within(soon+p.ttl(), held, "a held heartbeat")
		f := r.must(200)
		if f.null("cancel") {
			return false, fmt.Sprintf("a heartbeat that was held when the cancel came was answered after %v, without it", r.took)
		}
		c := f.obj("cancel")
		p.assert(c.str("reason") == "not needed" && c.int("graceMs") == 1234, "cancel is %s; want the reason \"not needed\" and graceMs 1234", f.raw["cancel"])
		a.complete(l, "cancelled", 0).must(200)
		return r.took < hold*7/10, fmt.Sprintf("a cancel after %v reached the held heartbeat after %v; the hold is %v", hold/10, r.took, hold)
	})
}

func heartbeatEndWakes(p *probe) {
	a := p.agent()
	hold := p.ttl() / 3
	p.tries(func() (bool, string) {
		p.submit(nil)
		l := a.start()
		held := p.later(func() reply { return a.beat(l, hold) })
		p.pause(hold / 10) // until it is held
		a.complete(l, "succeeded", 0).must(200)
		r := p.within(soon+p.ttl(), held, "a held heartbeat")
		if r.status == 200 {
			return false, "a heartbeat was answered with 200 after its attempt had ended during the hold"
		}
		r.refused(409, "lease_lost")
		return r.took < hold*7/10, fmt.Sprintf("the attempt ended after %v, and the held heartbeat was answered after %v; the hold is %v", hold/10, r.took, hold)
	})
}

func heartbeatCancelledNotHeld(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	p.cancel(l.job, "x").must(202)
	p.tries(func() (bool, string) {
		r := a.beat(l, p.ttl()/3)
		p.assert(!r.must(200).null("cancel"), "the heartbeat after a cancel doesn't tell of it")
		return r.took < p.ttl()/5, fmt.Sprintf("a heartbeat after the cancel was held for %v", r.took)
	})
}

func heartbeatCancelledRenewed(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	p.cancel(l.job, "x").must(202)
	for end := time.Now().Add(2 * p.ttl()); time.Now().Before(end); p.pause(p.ttl() / 5) {
		a.beat(l, 0).must(200)
	}
	a.complete(l, "cancelled", 0).must(200)
	p.assert(p.status(l.job) == "cancelled", "the job is %s; want cancelled", p.status(l.job))
}

func heartbeatSpooled(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	a.onJob(l, "heartbeat?waitMs=0", map[string]any{"spooledBytes": 4321, "oldestUnshippedMs": 10}).must(200)
	got := p.attempt(l.job, l.attempt).int("spooledBytes")
	p.assert(got == 4321, "spooledBytes is %d after a heartbeat that said 4321", got)
}
