package main

import (
	"math"
	"testing"
	"time"
)

// near says whether got is within part of want.
func near(got, want, part float64) bool { return math.Abs(got-want) <= part*want }

// customers come to a station at Poisson moments, and are watched.
type customers struct {
	arrived, served int
	inside          int
	area            float64 // customers × seconds
	last            time.Duration
	stay            float64 // seconds, of all that were served
}

func (c *customers) count(now time.Duration, change int) {
	c.area += float64(c.inside) * (now - c.last).Seconds()
	c.last = now
	c.inside += change
}

// visit sends n customers to s, one each gap on average.
func visit(e *engine, s *station, n int, gap time.Duration, service func() time.Duration) *customers {
	c := &customers{}
	var arrive func()
	arrive = func() {
		came := e.now
		c.arrived++
		c.count(e.now, 1)
		s.serve(service(), nil, func() {
			c.served++
			c.count(e.now, -1)
			c.stay += (e.now - came).Seconds()
		})
		if c.arrived < n {
			e.after(e.exp(gap), arrive)
		}
	}
	arrive()
	for len(e.heap) > 0 {
		e.run(e.now + time.Hour)
	}
	return c
}

// TestKnownQueues: what a customer waits on average is known in closed form for these.
func TestKnownQueues(t *testing.T) {
	const service = 10 * time.Millisecond
	for _, c := range []struct {
		name    string
		servers int
		busy    float64
		fixed   bool
		want    float64 // mean wait before service, in services
	}{
		{"M/M/1 half busy", 1, 0.5, false, 0.5 / (1 - 0.5)},
		{"M/M/1 at 80 %", 1, 0.8, false, 0.8 / (1 - 0.8)},
		{"M/D/1 half busy", 1, 0.5, true, 0.5 / (2 * (1 - 0.5))},
		{"M/D/1 at 80 %", 1, 0.8, true, 0.8 / (2 * (1 - 0.8))},
		{"M/M/3 at 80 %", 3, 0.8, false, erlangC(3, 0.8) / (3 * (1 - 0.8))},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(7)
			s := newStation(e, c.servers)
			took := func() time.Duration { return service }
			if !c.fixed {
				took = func() time.Duration { return e.exp(service) }
			}
			got := visit(e, s, 60_000, time.Duration(float64(service)/c.busy/float64(c.servers)), took)
			wait := got.stay/float64(got.served)/service.Seconds() - s.work.Seconds()/float64(got.served)/service.Seconds()
			if !near(wait, c.want, 0.05) {
				t.Errorf("the mean wait is %.3f services; want %.3f", wait, c.want)
			}
			if load := s.used().Seconds() / got.last.Seconds() / float64(c.servers); !near(load, c.busy, 0.01) {
				t.Errorf("the servers were busy for %.3f of the time; want %.2f", load, c.busy)
			}
			// Little: customers inside on average = arrivals a second × the time that one stays.
			inside, littles := got.area/got.last.Seconds(), got.stay/got.last.Seconds()
			if got.served != got.arrived || !near(inside, littles, 1e-6) {
				t.Errorf("%.4f customers were inside on average, of %d that came %d left; want %.4f, and all", inside, got.arrived, got.served, littles)
			}
		})
	}
}

// erlangC is the probability that a customer must wait.
func erlangC(servers int, busy float64) float64 {
	offered := busy * float64(servers)
	term, sum := 1.0, 0.0
	for k := range servers {
		sum += term
		term *= offered / float64(k+1)
	}
	last := term / (1 - busy)
	return last / (sum + last)
}

// TestReset: what was queued and under way ends at once, and what comes after it waits for none of it.
func TestReset(t *testing.T) {
	e := newEngine(1)
	s := newStation(e, 1)
	ended := 0
	for range 10 {
		s.serve(time.Second, nil, func() { ended++ })
	}
	e.run(2500 * time.Millisecond)
	s.reset()
	began, done := e.now, time.Duration(0)
	s.serve(time.Second, nil, func() { done = e.now })
	if ended != 10 {
		t.Errorf("%d of ten pieces have ended; want all", ended)
	}
	e.run(time.Minute)
	if done-began != time.Second || s.used() != 3500*time.Millisecond || ended != 10 {
		t.Errorf("the first piece after the reset took %v, %v were worked in all, %d ended; want 1s, 3.5s and ten", done-began, s.used(), ended)
	}
}

// TestGone: what nobody waits for any more takes no time.
func TestGone(t *testing.T) {
	e := newEngine(1)
	s := newStation(e, 1)
	gone, left, done := false, false, time.Duration(0)
	s.serve(time.Second, nil, func() {})
	s.serve(time.Second, &gone, func() { left = true })
	s.serve(time.Second, nil, func() { done = e.now })
	gone = true
	e.run(time.Minute)
	if left || done != 2*time.Second || s.used() != 2*time.Second {
		t.Errorf("the last piece was done at %v after %v of work, the one that is gone too: %v; want 2s, 2s, false", done, s.used(), left)
	}
}

// TestCommitsShareSyncs: those that come during a sync share the next one.
func TestCommitsShareSyncs(t *testing.T) {
	e := newEngine(1)
	d := &disk{engine: e, sync: 10 * time.Millisecond}
	done := 0
	d.commit(func() { done++ })
	for range 99 {
		e.after(time.Millisecond, func() { d.commit(func() { done++ }) })
	}
	e.run(time.Second)
	if most := 2 * 60 * time.Millisecond; done != 100 || d.used > most {
		t.Errorf("%d of 100 commits were done in %v of syncs; want all in two syncs", done, d.used)
	}
}

// TestBatcher: the batcher's rules, as TestBatch… of the store has them for the real one.
func TestBatcher(t *testing.T) {
	const gap, took = 100 * time.Millisecond, 10 * time.Millisecond
	type flush struct {
		at time.Duration
		n  int
	}
	try := func(lanes int, f func(e *engine, b *batcher[int])) (all []flush) {
		e := newEngine(1)
		b := newBatcher(&batcher[int]{engine: e, gap: gap, lanes: lanes, most: 10, flush: func(items []int, done func()) {
			all = append(all, flush{e.now, len(items)})
			e.after(took, done)
		}})
		f(e, b)
		e.run(10 * time.Second)
		return all
	}
	add := func(n int, urgent bool) func(*engine, *batcher[int]) {
		return func(_ *engine, b *batcher[int]) {
			for range n {
				b.add(1, urgent)
			}
		}
	}
	later := func(d time.Duration, f func(*engine, *batcher[int])) func(*engine, *batcher[int]) {
		return func(e *engine, b *batcher[int]) { e.after(d, func() { f(e, b) }) }
	}
	both := func(fs ...func(*engine, *batcher[int])) func(*engine, *batcher[int]) {
		return func(e *engine, b *batcher[int]) {
			for _, f := range fs {
				f(e, b)
			}
		}
	}
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		lanes int
		do    func(*engine, *batcher[int])
		want  []flush
	}{
		{"a lone caller waits for nothing", 1, add(1, false), []flush{{0, 1}}},
		{"what comes meanwhile waits for the gap", 1, both(add(1, false), later(5*ms, add(3, false))), []flush{{0, 1}, {gap, 3}}},
		{"an urgent one waits for the flush under way alone", 1, both(add(1, false), later(5*ms, add(1, true))), []flush{{0, 1}, {took, 1}}},
		{"and takes along what was gathered", 1, both(add(1, false), later(20*ms, add(3, false)), later(40*ms, add(1, true))), []flush{{0, 1}, {40 * ms, 4}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := try(c.lanes, c.do)
			if len(got) != len(c.want) {
				t.Fatalf("flushes are %v; want %v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("flushes are %v; want %v", got, c.want)
				}
			}
		})
	}
}
