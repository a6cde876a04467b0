package main

import (
	"reflect"
	"testing"
	"time"
)

// small is a control plane that fits a test.
func small() config {
	return config{agents: 300, instances: 3, cores: 2, dbCores: 4, busy: 1, maxJobs: 1, length: 30 * time.Second, line: 5 * time.Second, seed: 1, costs: defaultCosts()}
}

// underWay are heartbeats that were sent and have no end yet.
func (w *world) underWay() int {
	return w.seen.sent - w.seen.answered - w.seen.refused - w.seen.missed
}

// TestNothingIsLostFromSight: every heartbeat sent is answered, refused, missed or under way, and every job is somewhere, whatever happens.
func TestNothingIsLostFromSight(t *testing.T) {
	cfg := small()
	cfg.busy = 0.8
	jobs := int(cfg.busy * float64(cfg.agents))
	w := newWorld(cfg)
	check := func(when string) {
		t.Helper()
		beating := 0 // leases whose agent has a heartbeat under way
		for _, in := range w.instances {
			for _, c := range in.calls {
				if c.beat {
					beating++
				}
			}
		}
		// One that was refused its connection ends in the same moment, by an event of its own.
		if got := w.underWay(); got < beating || got > beating+jobs {
			t.Errorf("%s: %d heartbeats are under way by the counts, %d by the calls", when, got, beating)
		}
		live := 0
		for _, l := range w.leases {
			if !l.over {
				live++
			}
		}
		if got := live + len(w.pending) + w.between; got != jobs {
			t.Errorf("%s: %d jobs are leased, %d pending, %d between; want %d in all", when, live, len(w.pending), w.between, jobs)
		}
	}
	for _, step := range []struct {
		when string
		do   func()
	}{
		{"at first", func() {}},
		{"after one died", func() { w.instances[0].stop() }},
		{"without a database", w.db.stop},
		{"with it", w.db.start},
		{"after the one came back", w.instances[0].start},
		{"without instances", func() {
			for _, in := range w.instances {
				in.stop()
			}
		}},
		{"with them", func() {
			for _, in := range w.instances {
				in.start()
			}
		}},
	} {
		step.do()
		check("just " + step.when)
		w.run(w.now + 17*time.Second)
		check(step.when)
	}
	if w.seen.completed < jobs || w.seen.answered < 10*jobs || w.seen.missed == 0 {
		t.Errorf("only %d jobs were completed and %d heartbeats answered, %d missed: nothing was tried", w.seen.completed, w.seen.answered, w.seen.missed)
	}
}

// TestRhythm: a held heartbeat ends with a renewal that waits for half a gap on average, and the next one's first waits for a
// whole one. So 2,000 agents send about 635 a second, as they do in reality.
func TestRhythm(t *testing.T) {
	cfg := small()
	cfg.agents, cfg.instances, cfg.line, cfg.length = 2000, 1, 0, time.Hour
	w := newWorld(cfg)
	w.run(settle)
	r := w.watch("", 10*time.Second)
	rate := float64(r.seen.answered) / r.length.Seconds()
	if want := 2000 / (hold + renewGap*3/2).Seconds(); !near(rate, want, 0.02) {
		t.Errorf("%.0f heartbeats a second were answered; want %.0f", rate, want)
	}
	// Little: held = heartbeats a second × the hold.
	w.run(w.now + time.Second)
	held := 0.0
	const samples = 100
	for range samples {
		held += float64(w.instances[0].holds) / samples
		w.run(w.now + 70*time.Millisecond)
	}
	stay := (hold + at(r.seen.late, 0.5)).Seconds()
	if want := rate * stay; !near(held, want, 0.02) {
		t.Errorf("%.0f heartbeats were held on average; want %.0f a second × %.2f s = %.0f", held, rate, stay, want)
	}
	if r.seen.missed+r.seen.lost > 0 || at(r.seen.late, 1) > time.Second {
		t.Errorf("%d missed, %d lost, late by up to %v; want none, and less than a second", r.seen.missed, r.seen.lost, at(r.seen.late, 1))
	}
}

// TestOverload: where more is asked for than can be done, lateness grows; where not, it stays.
func TestOverload(t *testing.T) {
	lateness := func(beat time.Duration) (first, second report) {
		cfg := small()
		cfg.instances, cfg.cores, cfg.line, cfg.beat = 1, 1, 0, beat
		w := newWorld(cfg)
		return w.watch("", 5*time.Second), w.watch("", 20*time.Second)
	}
	before, after := lateness(8 * time.Millisecond) // 95 heartbeats a second × 8 ms: 76 % of the core
	if p50 := at(after.seen.late, 0.5); p50 > time.Second || p50 > 2*at(before.seen.late, 0.5)+200*time.Millisecond || after.seen.missed > 0 {
		t.Errorf("below capacity lateness goes from %v to %v, %d are missed; want it to stay", at(before.seen.late, 0.5), p50, after.seen.missed)
	}
	before, after = lateness(16 * time.Millisecond) // 152 %
	if p50 := at(after.seen.late, 0.5); p50 < 2*at(before.seen.late, 0.5) || after.instance.mean < 0.98 {
		t.Errorf("above capacity lateness goes from %v to %v with the core %v busy; want it to grow, and all of the core", at(before.seen.late, 0.5), p50, after.instance)
	}
	_, after = lateness(80 * time.Millisecond) // far above: not even the retries are answered in time
	if after.seen.missed == 0 || after.seen.lost+after.seen.reaped == 0 {
		t.Errorf("at eight times the capacity %d are missed, %d leases reaped; want both", after.seen.missed, after.seen.reaped)
	}
}

// TestNoLeaseIsLost by what the real control plane survives, at a size that leaves room.
func TestNoLeaseIsLost(t *testing.T) {
	for _, s := range scenarios {
		if s.name == "sweep" {
			continue
		}
		for _, r := range s.run(small(), 10*time.Second) {
			if r.seen.lost > 0 || r.seen.answered == 0 || at(r.seen.late, 1) > 5*time.Second {
				t.Errorf("%s: %d jobs were taken away, %d heartbeats answered, late by up to %v; want none, many, and less than 5s", r.name, r.seen.lost, r.seen.answered, at(r.seen.late, 1))
			}
		}
	}
}

// TestSilentAgentsAreReaped, after a TTL and before two, and another agent does the job.
func TestSilentAgentsAreReaped(t *testing.T) {
	cfg := small()
	cfg.agents, cfg.busy, cfg.length, cfg.line = 10, 0.1, time.Hour, 0
	w := newWorld(cfg)
	w.run(settle)
	silent := w.leases[0]
	silent.ended = true // it sends nothing any more
	began := w.now
	for !silent.over && w.now < began+time.Minute {
		w.run(w.now + 100*time.Millisecond)
	}
	if took := w.now - began; took < ttl-hold || took > 2*ttl {
		t.Errorf("the lease was reaped after %v; want a TTL, and a sweep", took)
	}
	w.run(w.now + time.Second)
	if next := w.leases[len(w.leases)-1]; next.a == silent.a || next.j != silent.j || !next.started {
		t.Errorf("the job isn't run by another agent: %+v", next)
	}
}

// TestHoldsAreBounded: beyond the limit heartbeats are answered at once, and polls told to come later.
func TestHoldsAreBounded(t *testing.T) {
	cfg := small()
	cfg.agents, cfg.instances, cfg.cores, cfg.dbCores, cfg.line = maxHolds+500, 1, 8, 8, 0
	cfg.beat, cfg.renewal = time.Microsecond, time.Microsecond
	cfg.length = time.Hour
	w := newWorld(cfg)
	w.run(3 * time.Second)
	r := w.watch("", time.Second)
	if r.holds != maxHolds || r.seen.missed > 0 {
		t.Errorf("%d were held at once, %d heartbeats missed; want %d, and none", r.holds, r.seen.missed, maxHolds)
	}
}

func TestSameSeedSameFigures(t *testing.T) {
	figures := func(seed uint64) report {
		cfg := small()
		cfg.seed = seed
		return one(cfg, "", 10*time.Second, func(w *world) { w.instances[1].stop() })[0]
	}
	a, b, c := figures(1), figures(1), figures(2)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("the same seed gives\n%+v\nand\n%+v", a, b)
	}
	if reflect.DeepEqual(a.seen.late, c.seen.late) {
		t.Error("another seed gives the same lateness")
	}
}
