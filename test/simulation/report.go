package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// report is what was seen within a stretch of time.
type report struct {
	name               string
	agents, instances  int
	seen               seen
	length             time.Duration
	instance, database load          // of the cores; instance: of the busiest one
	renewals, disk     load          // of the time: flushes of renewals under way (the busiest instance's), and syncs
	holds              int           // at once, at most, at one instance
	servers, db        time.Duration // CPU time
}

// load is a part of what there is: on average, and in the busiest second.
type load struct{ mean, peak float64 }

func (l load) String() string { return fmt.Sprintf("%.0f / %.0f %%", 100*l.mean, 100*l.peak) }

// meter adds up what a resource did.
type meter struct {
	used     func() time.Duration
	capacity float64 // servers
	first    time.Duration
	last     time.Duration
	load     load
}

func (m *meter) begin() { m.first = m.used(); m.last = m.first }

func (m *meter) second() {
	u := m.used()
	m.load.peak = max(m.load.peak, (u-m.last).Seconds()/m.capacity)
	m.last = u
}

func busiest(meters []*meter, length time.Duration) (l load) {
	for _, m := range meters {
		l.mean = max(l.mean, (m.used()-m.first).Seconds()/length.Seconds()/m.capacity)
		l.peak = max(l.peak, m.load.peak)
	}
	return l
}

// watch lets time pass and tells what was seen in it.
func (w *world) watch(name string, length time.Duration) report {
	r := report{name: name, agents: w.cfg.agents, instances: len(w.instances), length: length}
	before := w.seen
	w.seen.late, w.seen.pickup = nil, nil
	var cpu, renewals []*meter
	for _, in := range w.instances {
		cpu = append(cpu, &meter{used: in.cpu.used, capacity: float64(len(in.cpu.free))})
		renewals = append(renewals, &meter{used: func() time.Duration { return in.flushed + in.renewals.work() }, capacity: 1})
		in.most = in.holds
	}
	db := []*meter{{used: w.db.cpu.used, capacity: float64(len(w.db.cpu.free))}}
	disk := []*meter{{used: func() time.Duration { return w.db.disk.used }, capacity: 1}}
	all := slices.Concat(cpu, renewals, db, disk)
	for _, m := range all {
		m.begin()
	}
	servers, database := w.servers, w.db.work
	for end := w.now + length; w.now < end; {
		w.run(min(end, w.now+time.Second))
		for _, m := range all {
			m.second()
		}
	}
	r.servers, r.db = w.servers-servers, w.db.work-database
	r.instance, r.renewals, r.database, r.disk = busiest(cpu, length), busiest(renewals, length), busiest(db, length), busiest(disk, length)
	for _, in := range w.instances {
		r.holds = max(r.holds, in.most)
	}
	s := w.seen
	r.seen = seen{
		sent: s.sent - before.sent, answered: s.answered - before.answered, refused: s.refused - before.refused, missed: s.missed - before.missed,
		polls: s.polls - before.polls, logs: s.logs - before.logs, failed: s.failed - before.failed,
		completed: s.completed - before.completed, lost: s.lost - before.lost, reaped: s.reaped - before.reaped, lapsed: s.lapsed - before.lapsed,
		lookups: s.lookups - before.lookups, late: s.late, pickup: s.pickup,
	}
	slices.Sort(r.seen.late)
	slices.Sort(r.seen.pickup)
	return r
}

// at is a percentile of what is sorted.
func at(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

func brief(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

// table prints one row a report. Loads are means and the busiest second's.
func table(out io.Writer, reports []report) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tagents\tinstances\tinstance CPU\tflushes\tdatabase CPU\tdisk\tholds\tbeats/s\tlate p50\tp99\tmost\tmissed\tleases lost\tpickup p50\tp99\tother calls failed")
	for _, r := range reports {
		s := r.seen
		pickup := "\t"
		if len(s.pickup) > 0 {
			pickup = brief(at(s.pickup, 0.5)) + "\t" + brief(at(s.pickup, 0.99))
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%v\t%v\t%v\t%v\t%d\t%.0f\t%s\t%s\t%s\t%d\t%d\t%s\t%d\n", r.name, r.agents, r.instances, r.instance, r.renewals, r.database, r.disk, r.holds,
			float64(s.answered)/r.length.Seconds(), brief(at(s.late, 0.5)), brief(at(s.late, 0.99)), brief(at(s.late, 1)), s.missed, s.lost, pickup, s.failed)
	}
	return t.Flush()
}
