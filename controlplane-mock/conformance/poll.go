package conformance

import (
	"context"
	"net/http"
	"time"
)

const (
	secPoll     = "`GET /agent/v1/jobs/next?wait=30&type=extract&type=load`"
	secBeat     = "`POST /agent/v1/jobs/{id}/heartbeat?waitMs=3000`"
	secComplete = "`POST /agent/v1/jobs/{id}/complete`"
	secRelease  = "`POST /agent/v1/jobs/{id}/release`"
	secServer   = "The server's side"
)

var pollChecks = []Check{
	{"jobs/poll-headers", secPoll, []string{"Headers `Agentd-Poll-Id` (unique per poll) and `Agentd-Process-Id`, both required."}, pollHeaders, 0},
	{"jobs/poll-query", secPoll, []string{"At least one `type`. `wait` is a whole number ≥ 0; without it, the link's `pollWaitMs`. Else `400`."}, pollQuery, 0},
	{"jobs/poll-default-wait", secPoll, []string{"without it, the link's `pollWaitMs`."}, pollDefaultWait, minute},
	{"jobs/poll-none", secPoll, []string{"→ `200` with a job, or `204`: none within the wait."}, pollNone, 0},
	{"jobs/poll-cap", secPoll, []string{"The server holds the poll up to `wait` (at most 50 s)"}, pollCap, minute},
	{"jobs/poll-wakes", secPoll, []string{"answers as soon as a job can be leased"}, pollWakes, 0},
	{"jobs/poll-wakes-anywhere", secPoll, []string{"answers as soon as a job can be leased", "One job goes to exactly one poll, however many polls and servers there are."}, pollWakesAnywhere, peers},
	{"jobs/poll-client-gone", secPoll, []string{"gives the hold up when the client goes away"}, pollClientGone, 0},
	{"jobs/same-poll-same-offer", secPoll, []string{"The same poll id from the same agent, while its offer is neither accepted nor lapsed, gets the same offer"}, samePoll, 0},
	{"jobs/same-poll-not-renewed", secPoll, []string{"gets the same offer, not renewed"}, samePollNotRenewed, 0},
	{"jobs/same-poll-anywhere", secPoll, []string{"gets the same offer, not renewed; on any instance"}, samePollAnywhere, peers},
	{"jobs/one-job-one-poll", secPoll, []string{"One job goes to exactly one poll, however many polls and servers there are."}, oneJobOnePoll, chance},
	{"jobs/oldest-first", secPoll, []string{"Of the jobs that an agent may have (by `agentId`, by `labels` that it must all have, by type) the oldest pending one goes first."}, oldestFirst, 0},
	{"jobs/who-may-have-it", secPoll, []string{"Of the jobs that an agent may have (by `agentId`, by `labels` that it must all have, by type)"}, whoMayHaveIt, 0},
}

func pollHeaders(p *probe) {
	a := p.agent()
	path := "jobs/next?wait=0&type=" + p.kind
	p.agentCall("GET", path, a.apiKey, nil, "Agentd-Process-Id: "+a.process).refused(400, "invalid")
	p.agentCall("GET", path, a.apiKey, nil, "Agentd-Poll-Id: "+p.unique("poll")).refused(400, "invalid")
	p.agentCall("GET", path, a.apiKey, nil).refused(400, "invalid")
	a.poll(0).must(204)
}

func pollQuery(p *probe) {
	a := p.agent()
	for _, q := range []string{"wait=0", "", "wait=-1&type=x", "wait=1.5&type=x", "wait=x&type=x", "wait=&type=x", "wait=1s&type=x"} {
		a.pollVia(p.ctx, p.s.t.URL, p.unique("poll"), q).refused(400, "invalid")
	}
}

func pollDefaultWait(p *probe) {
	a := p.agent()
	want := a.link.millis("pollWaitMs")
	if want > time.Minute {
		p.skipf("pollWaitMs is %v", want)
	}
	r := a.pollVia(p.ctx, p.s.t.URL, p.unique("poll"), "type="+p.kind)
	r.must(204)
	p.assert(r.took > want-time.Second && r.took < want+soon, "a poll without wait was held for %v; want pollWaitMs, %v", r.took, want)
}

func pollNone(p *probe) {
	a := p.agent()
	p.tries(func() (bool, string) {
		r := a.poll(0)
		r.must(204)
		return r.took < 900*time.Millisecond, "a poll with wait=0 was held for " + r.took.String()
	})
	r := a.poll(2)
	r.must(204)
	p.assert(r.took >= 1900*time.Millisecond, "a poll with wait=2 was answered after %v", r.took)
	p.assert(r.took < 2*time.Second+soon, "a poll with wait=2 was held for %v", r.took)
}

func pollCap(p *probe) {
	r := p.agent().poll(3600)
	r.must(204)
	p.assert(r.took < 50*time.Second+soon, "a poll with wait=3600 was held for %v; want at most 50 s", r.took)
}

func pollWakes(p *probe) {
	a := p.agent()
	for range 3 {
		held := p.later(func() reply { return a.poll(45) })
		p.pause(100 * time.Millisecond) // until it is held; if it isn't yet, it finds the job: right, too
		id := p.submit(nil).str("id")
		l := leased(p.within(soon, held, "a held poll, with a job for it").must(200))
		p.assert(l.job == id, "the poll got %s; want %s", l.job, id)
		a.complete(l, "succeeded", 0).must(200)
	}
	// What goes back to pending wakes, too.
	p.submit(nil)
	l := a.take()
	held := p.later(func() reply { return a.poll(45) })
	p.pause(100 * time.Millisecond) // as above
	a.release(l).must(200)
	again := leased(p.within(soon, held, "a held poll, with a job that was released").must(200))
	p.assert(again.job == l.job, "the poll got %s; want %s", again.job, l.job)
}

func pollWakesAnywhere(p *probe) {
	a := p.agent()
	for _, peer := range p.s.t.Peers {
		held := p.later(func() reply { return a.pollVia(p.ctx, peer, p.unique("poll"), a.query(45)) })
		p.pause(100 * time.Millisecond) // as in pollWakes
		id := p.submit(nil).str("id")
		l := leased(p.within(soon, held, "a poll held by another instance, with a job for it").must(200))
		p.assert(l.job == id, "the poll got %s; want %s", l.job, id)
		a.complete(l, "succeeded", 0).must(200)
	}
}

func pollClientGone(p *probe) {
	a, b := p.agent(), p.agent()
	p.tries(func() (bool, string) {
		ctx, leave := context.WithCancel(p.ctx)
		gone := p.later(func() reply { return a.pollVia(ctx, p.s.t.URL, p.unique("poll"), a.query(45)) })
		p.pause(200 * time.Millisecond) // until it is held
		leave()
		<-gone
		p.pause(300 * time.Millisecond) // until the server has seen it
		held := p.later(func() reply { return b.poll(45) })
		p.pause(100 * time.Millisecond)
		p.submit(nil)
		l := leased(p.within(2*p.ttl()+soon, held, "a poll that waits beside one whose client has gone").must(200))
		b.complete(l, "succeeded", 0).must(200)
		return l.attempt == 1, "a job was offered to a poll whose client had gone"
	})
}

func samePoll(p *probe) {
	a, b := p.agent(), p.agent()
	id := p.unique("poll")
	p.submit(nil)
	first := leased(a.pollID(id, 5).must(200))
	p.submit(nil)
	for range 3 {
		again := leased(a.pollID(id, 5).must(200))
		p.assert(again.job == first.job && again.attempt == first.attempt && again.token == first.token,
			"the same poll got job %s attempt %d, and then job %s attempt %d with the token the same: %v", first.job, first.attempt, again.job, again.attempt, first.token == again.token)
	}
	// Another agent's poll with that id, and another poll of this agent, are not the same poll.
	other := leased(b.pollID(id, 5).must(200))
	p.assert(other.job != first.job, "another agent got the offer with the same poll id")
	a.poll(0).must(204)
	// Accepted: the poll is over.
	a.beat(first, 0).must(200)
	a.pollID(id, 0).must(204)
}

func samePollNotRenewed(p *probe) {
	a := p.agent()
	id := p.unique("poll")
	p.submit(nil)
	first := leased(a.pollID(id, 5).must(200))
	p.until(3*p.ttl()+soon, "an offer that is asked for again and again lapses", func() bool {
		r := a.pollID(id, 0)
		return r.status == http.StatusNoContent || r.status == 200 && leased(r.must(200)).attempt != first.attempt
	})
	p.isState(first, "lapsed", soon+p.ttl())
}

func samePollAnywhere(p *probe) {
	a := p.agent()
	id := p.unique("poll")
	p.submit(nil)
	first := leased(a.pollID(id, 5).must(200))
	for _, peer := range p.s.t.Peers {
		again := leased(a.pollVia(p.ctx, peer, id, a.query(0)).must(200))
		p.assert(again.attempt == first.attempt && again.token == first.token, "the same poll got attempt %d from one instance and %d from another", first.attempt, again.attempt)
	}
}

func oneJobOnePoll(p *probe) {
	const agents, polls = 4, 3
	bases := append([]string{p.s.t.URL}, p.s.t.Peers...)
	var held, submitted []<-chan reply
	for i := range agents {
		a := p.agent()
		for j := range polls {
			held = append(held, p.later(func() reply { return a.pollVia(p.ctx, bases[(i+j)%len(bases)], p.unique("poll"), a.query(45)) }))
		}
	}
	p.pause(200 * time.Millisecond) // until most of them are held
	for range agents * polls {
		submitted = append(submitted, p.later(func() reply { return p.adminCall("POST", "jobs", map[string]any{"type": p.kind}) }))
	}
	got := map[string]int{}
	for _, ch := range submitted {
		id := p.within(soon, ch, "a submission").must(201).str("id")
		p.mine(id)
		got[id] = 0
	}
	for _, ch := range held {
		// As many jobs as polls: each gets one.
		l := leased(p.within(soon, ch, "one of as many polls as there are jobs").must(200))
		if l.attempt == 1 { // an offer that lapsed on a busy machine goes to another, rightly
			got[l.job]++
		}
		p.assert(got[l.job] <= 1, "job %s went to two polls", l.job)
	}
}

func oldestFirst(p *probe) {
	a := p.agent(map[string]any{"labels": map[string]string{"k": "v"}})
	var want []string
	for _, with := range []map[string]any{nil, {"agentId": a.id}, {"labels": map[string]string{"k": "v"}}, nil} {
		want = append(want, p.submit(with).str("id"))
	}
	for i, id := range want {
		l := a.take()
		p.assert(l.job == id, "poll %d got job %s; the oldest is %s", i, l.job, id)
	}
}

func whoMayHaveIt(p *probe) {
	a := p.agent(map[string]any{"labels": map[string]string{"k": "v", "zone": "b"}})
	b := p.agent(map[string]any{"labels": map[string]string{"k": "v"}})
	p.submit(map[string]any{"agentId": a.id})
	p.submit(map[string]any{"labels": map[string]string{"k": "v", "zone": "b"}})
	p.submit(map[string]any{"labels": map[string]string{"k": "other"}})
	b.poll(0).must(204)
	a.poll(0, p.kind+"x").must(204)
	for range 2 {
		a.take()
	}
	a.poll(0).must(204)
	// One of several types is enough.
	p.submit(map[string]any{"labels": map[string]string{"k": "v"}})
	leased(b.poll(5, p.kind+"x", p.kind).must(200))
}
