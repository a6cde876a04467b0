package conformance

import "time"

var reaperChecks = []Check{
	{"jobs/reaper", secServer, []string{"At least every quarter TTL it ends the attempts whose lease ran out as `lost`."}, reaped, 0},
	{"jobs/reaper-spares", secServer, []string{"it ends the attempts whose lease ran out as `lost`."}, reaperSpares, 0},
	{"jobs/retry-lost", secServer, []string{"the job is pending again while used attempts < `maxAttempts` (default 3). Else it is final; a lost one is `failed`."}, retryLost, 0},
	{"jobs/retry-on", secServer, []string{"After an attempt that ended in something that the job's `retryOn` lists (default `[\"lost\"]`; also `failed`, `timedOut`)"}, retryOn, 0},
}

func reaped(p *probe) {
	a := p.agent()
	p.submit(nil)
	// The last renewal lies between these two.
	l := a.take()
	before := time.Now()
	a.beat(l, 0).must(200)
	after := time.Now()
	p.tries(func() (bool, string) {
		p.lapse(l)
		took := time.Since(before)
		p.assert(took > p.ttl()*9/10, "the lease was ended after %v; the TTL is %v", took, p.ttl())
		// A TTL and a quarter, and what a busy machine needs.
		ok := time.Since(after) < p.ttl()*5/4+p.ttl()/2
		what := "the lease was ended " + time.Since(after).String() + " after its last renewal; the TTL is " + p.ttl().String()
		if !ok {
			l = a.start()
			before, after = time.Now(), time.Now()
		}
		return ok, what
	})
	p.assert(p.status(l.job) != "running", "the job is running after its attempt was lost")
	a.beat(l, 0).refused(409, "lease_lost")
}

func reaperSpares(p *probe) {
	a := p.agent()
	p.tries(func() (bool, string) {
		p.submit(map[string]any{"maxAttempts": 1})
		l := a.start()
		p.pause(p.ttl() * 85 / 100)
		r := a.beat(l, 0)
		a.complete(l, "succeeded", 0)
		return r.status == 200, "a heartbeat 0.85 TTLs after the last: " + r.String()
	})
}

func retryLost(p *probe) {
	a := p.agent()
	id := p.submit(nil).str("id")
	for i := range 3 {
		l := a.start()
		p.assert(l.job == id, "attempt %d of the job was not offered", i+1)
		p.lapse(l)
		want := "pending"
		if i == 2 {
			want = "failed"
		}
		p.assert(p.status(id) == want, "the job is %s after %d of 3 attempts were lost; want %s", p.status(id), i+1, want)
	}
	a.poll(0).must(204)
}

func retryOn(p *probe) {
	a := p.agent()
	for _, c := range []struct {
		on      []string
		outcome string
		tries   int
	}{
		{nil, "failed", 1},
		{nil, "timedOut", 1},
		{[]string{"failed"}, "failed", 2},
		{[]string{"timedOut"}, "timedOut", 2},
		{[]string{"failed"}, "timedOut", 1},
		{[]string{"failed"}, "lost", 1},
		{[]string{}, "lost", 1},
		{[]string{"failed", "timedOut", "lost"}, "succeeded", 1},
		{[]string{"failed", "timedOut", "lost"}, "cancelled", 1},
	} {
		with := map[string]any{"maxAttempts": 2}
		if c.on != nil {
			with["retryOn"] = c.on
		}
		id := p.submit(with).str("id")
		n := 0
		for p.status(id) == "pending" {
			a.complete(a.start(), c.outcome, 0).must(200)
			n++
		}
		p.assert(n == c.tries, "retryOn %v, maxAttempts 2, %s each time: %d attempts; want %d", c.on, c.outcome, n, c.tries)
	}
}
