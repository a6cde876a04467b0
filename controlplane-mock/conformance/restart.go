package conformance

import "time"

var restartChecks = []Check{
	{"jobs/same-poll-after-restart", secPoll, []string{"gets the same offer, not renewed; on any instance, and after a restart."}, samePollAfterRestart, restart},
	{"jobs/shutdown-ends-polls", secPoll, []string{"and answers `204` when it shuts down."}, shutdownEndsPolls, shutdown},
	{"jobs/restart-reruns-nothing", secServer, []string{"After a start it waits one full TTL before its first sweep, and time in which the database was away doesn't count: a restart re-runs nothing."}, restartRerunsNothing, restart},
	{"logs/durable", secShip, []string{"**everything below `next` is durably stored**"}, logDurable, restart},
	{"queries/lost-with-restart", secAnswer, []string{"`410 gone`: answered, withdrawn, timed out, lost with a restart, or unknown"}, queryLost, restart},
}

func (p *probe) restart() {
	err := p.s.t.Restart(p.ctx)
	p.assert(err == nil, "the restart: %v", err)
	p.s.web.CloseIdleConnections()
}

func samePollAfterRestart(p *probe) {
	a := p.agent()
	p.tries(func() (bool, string) {
		id := p.unique("poll")
		p.submit(nil)
		first := leased(a.pollID(id, 5).must(200))
		p.restart()
		r := a.pollID(id, 0)
		if r.status != 200 {
			return false, "the same poll after a restart: " + r.String()
		}
		again := leased(r.must(200))
		a.complete(again, "succeeded", 0)
		return again.job == first.job && again.attempt == first.attempt && again.token == first.token, "the same poll got another offer after a restart"
	})
}

func shutdownEndsPolls(p *probe) {
	a := p.agent()
	p.tries(func() (bool, string) {
		held := p.later(func() reply { return a.poll(45) })
		p.pause(time.Second) // until it is held
		var err error
		down := p.later(func() reply { err = p.s.t.Shutdown(p.ctx); return reply{} })
		r := p.within(soon, held, "a held poll, with the server shutting down")
		<-down
		p.assert(err == nil, "the shutdown: %v", err)
		p.s.web.CloseIdleConnections()
		return r.status == 204, "a poll that was held when the server was shut down: " + r.String()
	})
}

func restartRerunsNothing(p *probe) {
	if len(p.s.t.Peers) > 0 {
		p.skipf("the other instances reap meanwhile, and rightly")
	}
	a := p.agent()
	p.tries(func() (bool, string) {
		p.submit(map[string]any{"maxAttempts": 1})
		l := a.start()
		p.pause(p.ttl() * 8 / 10)
		p.restart()
		p.pause(p.ttl() * 8 / 10)
		r := a.beat(l, 0)
		a.complete(l, "succeeded", 0)
		return r.status == 200, "a heartbeat 0.8 TTLs after a restart, and 1.6 after the last one: " + r.String()
	})
}

func logDurable(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 200, 200)
	p.restart()
	p.assert(a.next(l) == 200, "next is %d after a restart; want 200", a.next(l))
	a.append(l, 100, 200, 300)
	p.holds(l, numbered(300))
}

func queryLost(p *probe) {
	a, q, asked := p.question(30 * time.Second)
	p.restart()
	<-asked
	a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": emptyPage()}).refused(410, "gone")
}
