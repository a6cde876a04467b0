package main

import (
	"slices"
	"time"
)

// Limits and rhythms of an instance, as controlplane-mock and its store on PostgreSQL have them.
const (
	ttl         = 10 * time.Second
	maxHolds    = 20_000
	conns       = 14                     // connections for what must be durable
	lazyConns   = 2                      // for NOTIFY
	renewGap    = 100 * time.Millisecond // renewals are gathered for as long
	noticeGap   = 2 * time.Millisecond
	maxRenewals = 1000 // in a flush
	maxBatches  = 256
	maxNotices  = 4096
	maxReaped   = 1000 // in a sweep
	pollWait    = 30 * time.Second
	retryHold   = 5 * time.Second // asked for when there are too many holds
	resyncSteps = 20              // over resyncSpread
	resyncEvery = 10 * time.Millisecond
	relisten    = 5 * time.Second // at most so long after the database is back an instance hears again
)

// result is how a call ended, as its client sees it.
type result int

const (
	ok          result = iota
	none               // an empty poll
	lost               // lease_lost
	unavailable        // 503
	full               // 503: too many requests wait
	cut                // no answer: refused, broken, or not within the client's time
)

// call is a request under way.
type call struct {
	at    *instance
	index int // in at.calls
	over  bool
	beat  bool   // a heartbeat's
	fresh bool   // on a connection of its own
	leave func() // ends its hold
	wake  func() // of a held heartbeat: something may have changed
	reply func(result)
}

// instance is one control plane.
type instance struct {
	w     *world
	cpu   *station
	pool  *pool
	lazy  *pool
	up    bool
	life  int // counts its starts
	heard bool
	keys  []bool // by agent: whose keys are known

	flushed time.Duration // by the renewals of earlier lives

	renewals *batcher[renewal]
	appends  *batcher[func(ok bool)]
	notices  *batcher[notice]

	calls   []*call
	holds   int
	most    int // holds at once, so far
	waiters []*poll

	away  bool // the reaper: something that lets leases be renewed failed
	spare time.Duration
}

type renewal struct {
	l    *lease
	done func(result)
}

// notice is what other instances hear of a change; pending: that there is a job.
type notice struct{ pending bool }

func (w *world) newInstance() *instance {
	in := &instance{w: w, cpu: w.cores(w.cfg.cores)}
	in.start()
	return in
}

// start begins it anew, with nothing remembered.
func (in *instance) start() {
	w := in.w
	in.up, in.heard, in.away = true, true, false
	in.life++
	in.spare, in.holds = w.now, 0
	in.keys = make([]bool, w.cfg.agents)
	in.pool, in.lazy = &pool{free: conns}, &pool{free: lazyConns}
	if in.renewals != nil {
		in.flushed += in.renewals.work()
	}
	in.renewals = newBatcher(&batcher[renewal]{engine: w.engine, flush: in.renew, gap: renewGap, lanes: 1, most: maxRenewals})
	in.appends = newBatcher(&batcher[func(bool)]{engine: w.engine, flush: in.append, lanes: 2, most: maxBatches})
	in.notices = newBatcher(&batcher[notice]{engine: w.engine, flush: in.notify, gap: noticeGap, lanes: 1, most: maxNotices})
	w.reapers(in, in.life)
}

// stop kills it: whoever waits for an answer sees its connection break.
func (in *instance) stop() {
	in.up = false
	in.life++
	in.w.reset(in.cpu)
	in.waiters = nil
	for len(in.calls) > 0 {
		in.calls[len(in.calls)-1].end(cut)
	}
}

// open begins a call from an agent. limit is the client's patience. nil: nobody is there to answer.
func (w *world) open(a *agent, limit time.Duration, reply func(result)) *call {
	fresh := a.home == nil
	if fresh && !w.connect(a) {
		w.after(0, func() { reply(cut) })
		return nil
	}
	c := &call{at: a.home, index: len(a.home.calls), fresh: fresh}
	c.reply = func(r result) {
		if r == cut && a.home == c.at {
			a.home = nil // the next call is on a fresh connection, wherever the balancer sends it
		}
		reply(r)
	}
	c.at.calls = append(c.at.calls, c)
	w.after(limit, func() { c.end(cut) })
	return c
}

// end answers, unless the call is over.
func (c *call) end(r result) {
	if c.over {
		return
	}
	c.over = true
	open := c.at.calls
	last := open[len(open)-1]
	open[c.index], last.index = last, c.index
	c.at.calls = open[:len(open)-1]
	if c.leave != nil {
		c.leave()
	}
	c.reply(r)
}

// work uses the instance's CPU, unless the call that it is for is over by then, and goes on if the instance lives still.
func (in *instance) work(d time.Duration, c *call, then func()) {
	life := in.life
	d = in.w.about(d)
	var gone *bool
	client := time.Duration(0)
	if c != nil {
		gone, client = &c.over, in.w.cfg.client/2
	}
	in.w.servers += d
	in.cpu.serve(d+client, gone, func() {
		if in.life == life {
			then()
		}
	})
}

// sql is a statement of this instance.
func (in *instance) sql(p *pool, cpu time.Duration, act func() (durable bool), done func(ok bool)) {
	life := in.life
	in.w.db.statement(p, cpu, act, func(ok bool) {
		if in.life == life {
			done(ok)
		}
	})
}

// What a statement does to the data where the model keeps none.
func reads() bool  { return false }
func writes() bool { return true }

// many is a statement for many: for its own CPU, see costs.
func (in *instance) many(p *pool, cpu time.Duration, act func() (durable bool), done func(ok bool)) {
	in.work(in.w.cfg.query, nil, func() { in.sql(p, cpu, act, done) })
}

// authenticate knows a key by heart while the instance hears of changes.
func (in *instance) authenticate(a *agent, then func(ok bool)) {
	if in.heard && in.keys[a.number] {
		then(true)
		return
	}
	in.w.seen.lookups++
	in.sql(in.pool, in.w.cfg.look, reads, func(ok bool) {
		if ok && in.heard {
			in.keys[a.number] = true
		}
		then(ok)
	})
}

// hold takes a place among those that wait.
func (in *instance) hold(c *call) bool {
	if in.holds >= maxHolds {
		return false
	}
	in.holds++
	in.most = max(in.most, in.holds)
	life := in.life
	c.leave = func() {
		if in.life == life {
			in.holds--
		}
	}
	return true
}

// serve is how every call begins: some CPU, and whose it is. The caller answers with the rest of the CPU.
func (in *instance) serve(c *call, a *agent, cpu time.Duration, then func()) {
	first := cpu
	if c.fresh {
		first += in.w.cfg.dial
	}
	in.work(first, c, func() {
		in.authenticate(a, func(ok bool) {
			switch {
			case c.over:
			case !ok:
				in.answer(c, cpu, unavailable)
			default:
				then()
			}
		})
	})
}

func (in *instance) answer(c *call, cpu time.Duration, r result) {
	in.work(cpu, c, func() { c.end(r) })
}

// heartbeat renews, holds, and renews again.
func (in *instance) heartbeat(c *call, l *lease, hold time.Duration) {
	cpu := in.w.cfg.beat / 2
	c.beat = true
	in.serve(c, l.a, cpu, func() {
		if hold > 0 && !in.hold(c) {
			hold = 0
		}
		answer := func(r result) { in.answer(c, cpu, r) }
		in.renewals.add(renewal{l, func(r result) {
			if c.over {
				return
			}
			if r != ok || hold == 0 {
				answer(r)
				return
			}
			due, urgent := false, false
			again := func() {
				if c.over {
					return
				}
				in.renewals.add(renewal{l, func(r result) {
					if due || r != ok {
						answer(r)
					}
				}}, urgent)
			}
			c.wake = func() {
				urgent = true
				in.authenticate(l.a, func(known bool) {
					if known {
						again()
					} else {
						answer(unavailable)
					}
				})
			}
			in.w.after(hold, func() {
				due, c.wake = true, nil
				again()
			})
		}}, hold == 0)
	})
}

// renew is one statement for many leases.
func (in *instance) renew(items []renewal, done func()) {
	w := in.w
	results := make([]result, len(items))
	cpu := w.cfg.statement + time.Duration(len(items))*w.cfg.renewal
	in.many(in.pool, cpu, func() bool {
		for i, r := range items {
			results[i] = r.l.renew(w.now)
		}
		return true
	}, func(fine bool) {
		in.away = in.away || !fine
		answer := func(fine bool) {
			for i, r := range items {
				if !fine {
					results[i] = unavailable
				}
				r.done(results[i])
			}
			done()
		}
		if fine && slices.Contains(results, lost) {
			in.sql(in.pool, w.cfg.look, reads, answer) // is the job unknown, or its lease lost?
			return
		}
		answer(fine)
	})
}

// appendLog stores a small batch, together with others.
func (in *instance) appendLog(c *call, a *agent) {
	cpu := in.w.cfg.log / 2
	in.serve(c, a, cpu, func() {
		in.appends.add(func(fine bool) {
			if fine {
				in.tell(notice{})
			}
			in.answer(c, cpu, resultOf(fine))
		}, false)
	})
}

func resultOf(fine bool) result {
	if fine {
		return ok
	}
	return unavailable
}

func (in *instance) append(items []func(bool), done func()) {
	cpu := in.w.cfg.statement + time.Duration(len(items))*in.w.cfg.batch
	in.many(in.pool, cpu, writes, func(fine bool) {
		for _, item := range items {
			item(fine)
		}
		done()
	})
}

// poll is a held request for a job.
type poll struct {
	c      *call
	a      *agent
	in     *instance
	end    bool // its time is over
	queued bool // among the waiters
	offer  *lease
}

func (in *instance) nextJob(c *call, a *agent, wait time.Duration) *poll {
	p := &poll{c: c, a: a, in: in}
	in.serve(c, a, in.w.cfg.poll/2, func() {
		if !in.hold(c) {
			in.answer(c, 0, full)
			return
		}
		in.w.after(wait, func() {
			if p.end = true; p.queued {
				p.queued = false
				p.answer(none)
			}
		})
		p.look()
	})
	return p
}

func (p *poll) answer(r result) { p.in.answer(p.c, p.in.w.cfg.poll/2, r) }

// look leases the oldest pending job, or waits. It can be woken from before the look on.
func (p *poll) look() {
	in, w := p.in, p.in.w
	if p.c.over {
		return
	}
	cpu := w.cfg.look
	if len(w.pending) > 0 {
		cpu = w.cfg.change
	}
	in.sql(in.pool, cpu, func() bool {
		if len(w.pending) == 0 {
			return false
		}
		p.offer = w.lease(p.a, w.pending[0])
		w.pending = w.pending[1:]
		return true
	}, func(fine bool) {
		switch {
		case !fine:
			p.answer(unavailable) // the same poll gets the offer again, or it lapses
		case p.offer != nil:
			p.answer(ok)
		case p.end:
			p.answer(none)
		case !p.c.over:
			p.queued = true
			in.waiters = append(in.waiters, p)
		}
	})
}

// wakeOne has the poll that waits for longest look.
func (in *instance) wakeOne() {
	for len(in.waiters) > 0 {
		p := in.waiters[0]
		in.waiters = in.waiters[1:]
		if p.queued && !p.c.over {
			p.queued = false
			p.look()
			return
		}
	}
}

// alter reads a job's row, and changes it durably.
func (in *instance) alter(act func(), done func(ok bool)) {
	in.sql(in.pool, in.w.cfg.look, reads, func(fine bool) {
		if !fine {
			done(false)
			return
		}
		in.sql(in.pool, in.w.cfg.change, func() bool { act(); return true }, done)
	})
}

func (in *instance) complete(c *call, l *lease) {
	cpu := in.w.cfg.job / 4
	in.serve(c, l.a, cpu, func() {
		r := ok
		in.alter(func() { r = l.complete() }, func(fine bool) {
			if !fine {
				r = unavailable
			}
			if r == ok {
				in.tell(notice{})
			}
			in.answer(c, cpu, r)
		})
	})
}

// submit takes a new job in.
func (in *instance) submit(j *job) {
	in.work(in.w.cfg.job/2, nil, func() {
		in.sql(in.pool, in.w.cfg.change, func() bool { in.w.between--; in.w.pend(j); return true }, func(fine bool) {
			if fine {
				in.tell(notice{pending: true})
				return
			}
			in.w.after(time.Second, func() { in.w.submit(j) }) // whoever submits tries again
		})
	})
}

// tell announces a change here at once, and to the others together with what else has changed.
func (in *instance) tell(n notice) {
	if n.pending {
		in.wakeOne()
	}
	in.notices.add(n, false)
}

func (in *instance) notify(items []notice, done func()) {
	w := in.w
	in.many(in.lazy, w.cfg.notify+time.Duration(len(w.instances))*w.cfg.listen, func() bool {
		for _, other := range w.instances {
			if other == in || !other.up || !other.heard {
				continue
			}
			life := other.life
			w.after(w.cfg.network/2, func() {
				if other.life == life {
					other.hear(items)
				}
			})
		}
		return false
	}, func(bool) { done() })
}

func (in *instance) hear(items []notice) {
	in.work(in.w.cfg.notice+time.Duration(len(items))*in.w.cfg.event, nil, func() {
		for _, n := range items {
			if n.pending {
				in.wakeOne()
			}
		}
	})
}

// deafen is the end of the connection that changes are heard on.
func (in *instance) deafen() { in.heard, in.keys = false, make([]bool, in.w.cfg.agents) }

// listen hears again: everyone who waits looks again, spread over a moment.
func (in *instance) listen() {
	if !in.up {
		return
	}
	in.heard = true
	life := in.life
	var wakes []func()
	for _, c := range in.calls {
		if wake := c.wake; wake != nil {
			wakes = append(wakes, func() {
				if !c.over && c.wake != nil {
					wake()
				}
			})
		}
	}
	for range in.waiters {
		wakes = append(wakes, in.wakeOne)
	}
	for step := range resyncSteps {
		in.w.after(time.Duration(step)*resyncEvery, func() {
			if in.life != life {
				return
			}
			for _, wake := range wakes[len(wakes)*step/resyncSteps : len(wakes)*(step+1)/resyncSteps] {
				wake()
			}
		})
	}
}
