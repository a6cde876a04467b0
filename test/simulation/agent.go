package main

import (
	"time"
)

// Rhythms of an agent, as agent, agent/protocol and leasekeeper have them.
const (
	hold         = 3 * time.Second // that a heartbeat asks for, and the pace where it isn't held
	answerTime   = ttl / 3         // beyond the hold; then the heartbeat is missed
	firstPause   = 500 * time.Millisecond
	longPause    = 30 * time.Second // at most, before a call is repeated
	beatPause    = 2 * time.Second  // at most, before a heartbeat is
	holdGrace    = 15 * time.Second // a poll's client waits so much longer than its wait
	callPatience = 30 * time.Second
)

// backOff is exponential with full jitter.
type backOff struct{ bound, longest time.Duration }

func (b *backOff) pause(e *engine) time.Duration {
	if b.bound == 0 {
		b.bound = firstPause
	}
	p := e.upTo(b.bound)
	b.bound = min(2*b.bound, b.longest)
	return p
}

func (b *backOff) reset() { b.bound = 0 }

// agent asks for jobs.
type agent struct {
	w       *world
	number  int
	home    *instance // whom it is connected to; nil: nobody
	running int
	polling bool
	probe   bool // the next poll doesn't wait: the last one failed
	wait    backOff
}

// ask polls while the agent could run another job.
func (a *agent) ask() {
	if a.polling || a.running >= a.w.cfg.maxJobs {
		return
	}
	a.polling = true
	wait := pollWait
	if a.probe {
		wait = 0
	}
	a.w.seen.polls++
	var p *poll
	c := a.w.open(a, wait+holdGrace, func(r result) {
		a.polling = false
		if r == ok || r == none {
			a.wait.reset()
			a.probe = false
			if r == ok {
				a.take(p.offer)
			}
			a.ask()
			return
		}
		a.w.seen.failed++
		a.probe = true
		pause := a.wait.pause(a.w.engine)
		if r == full {
			pause += retryHold
		}
		a.polling = true
		a.w.after(pause, func() { a.polling = false; a.ask() })
	})
	if c != nil {
		p = c.at.nextJob(c, a, wait)
	}
}

// take runs a job, if the offer can be accepted.
func (a *agent) take(l *lease) {
	a.running++
	if j := l.j; j.submitted >= 0 {
		a.w.seen.pickup = append(a.w.seen.pickup, a.w.now-j.submitted)
		j.submitted = -1
	}
	l.keep()
}

// job is what is submitted, once; when it has ended, another one is.
type job struct {
	submitted time.Duration // -1: it was picked up
}

// lease is one offer of a job, in the database and at the agent that keeps it.
type lease struct {
	a *agent
	j *job

	until     time.Duration // in the database
	accepted  bool
	over      bool // completed, reaped or lapsed
	completed bool

	started   bool // the agent has heard that the offer is its own
	reporting bool
	ended     bool // the agent is done with it
	beat      *call
	missed    int // heartbeats in a row
	due       time.Duration
	beats     backOff
	reports   backOff

	shipping, more bool // a log batch is under way; lines have come meanwhile
	ships          backOff
}

// renew accepts or extends.
func (l *lease) renew(now time.Duration) result {
	if l.over {
		return lost
	}
	l.accepted, l.until = true, now+ttl
	return ok
}

// complete settles; once more is the same.
func (l *lease) complete() result {
	if l.over && !l.completed {
		return lost
	}
	if !l.completed {
		l.a.w.between++
	}
	l.over, l.completed = true, true
	return ok
}

// keep sends one heartbeat after the other. The first one accepts the offer.
func (l *lease) keep() {
	if l.ended {
		return
	}
	w := l.a.w
	wait := hold
	if !l.started || l.missed > 0 {
		wait = 0
	}
	sent := w.now
	w.seen.sent++
	l.beat = w.open(l.a, wait+answerTime, func(r result) { l.heard(r, sent, wait) })
	if l.beat != nil {
		l.beat.at.heartbeat(l.beat, l, wait)
	}
}

// heard deals with a heartbeat's answer.
func (l *lease) heard(r result, sent, wait time.Duration) {
	w := l.a.w
	switch r {
	case ok:
		w.seen.answered++
	case lost:
		w.seen.refused++
	default:
		w.seen.missed++
	}
	switch {
	case l.ended:
	case r == ok:
		due := sent + wait
		if l.missed > 0 {
			due = max(l.due, min(w.back, w.now)) // nobody was there to answer before
		}
		w.seen.late = append(w.seen.late, w.now-due)
		l.missed = 0
		l.beats.reset()
		if !l.started {
			l.start()
		}
		if took := w.now - sent; wait == 0 || took < wait/2 {
			w.after(hold-took, l.keep)
		} else {
			l.keep()
		}
	case r == lost:
		if l.started && !l.reporting {
			w.seen.lost++
		}
		l.end()
	default:
		if l.missed++; l.missed == 1 {
			l.due = sent + wait
		}
		l.a.home = nil // the next one goes out on a fresh connection
		w.after(l.beats.pause(w.engine), l.keep)
	}
}

// start is the job's own life: it prints, and ends.
func (l *lease) start() {
	w := l.a.w
	l.started = true
	w.after(w.exp(w.cfg.length), l.report)
	if w.cfg.line > 0 {
		w.after(w.exp(w.cfg.line), l.print)
	}
}

func (l *lease) print() {
	if l.ended || l.reporting {
		return
	}
	if l.shipping {
		l.more = true
	} else {
		l.ship()
	}
	l.a.w.after(l.a.w.exp(l.a.w.cfg.line), l.print)
}

// ship sends what was printed until it is stored.
func (l *lease) ship() {
	w := l.a.w
	l.shipping, l.more = true, false
	w.seen.logs++
	c := w.open(l.a, callPatience, func(r result) {
		switch {
		case r != ok:
			w.seen.failed++
			w.after(l.ships.pause(w.engine), l.ship)
		case l.more:
			l.ships.reset()
			l.ship()
		default:
			l.ships.reset()
			l.shipping = false
		}
	})
	if c != nil {
		c.at.appendLog(c, l.a)
	}
}

// report tells the outcome until it was heard.
func (l *lease) report() {
	if l.ended {
		return
	}
	w := l.a.w
	l.reporting = true
	c := w.open(l.a, callPatience, func(r result) {
		switch {
		case l.ended:
		case r == ok:
			w.seen.completed++
			w.after(w.exp(time.Second), func() { w.submit(&job{submitted: w.now}) })
			l.end()
		case r == lost:
			w.seen.lost++
			l.end()
		default:
			w.seen.failed++
			w.after(l.reports.pause(w.engine), l.report)
		}
	})
	if c != nil {
		c.at.complete(c, l)
	}
}

// end frees the agent's slot.
func (l *lease) end() {
	l.ended = true
	if l.beat != nil && l.beat.wake != nil {
		l.beat.wake() // the held heartbeat is answered in the moment that the report is taken: with lease_lost
	}
	l.a.running--
	l.a.ask()
}
