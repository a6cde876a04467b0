package main

import "time"

// config is what is simulated.
type config struct {
	agents, instances int
	cores, dbCores    int           // of each instance's machine, and of the database's
	oneMachine        bool          // instances, database and agents share the cores of one
	busy              float64       // the part of the agents that has a job
	maxJobs           int           // of an agent: while it has fewer, it polls
	length            time.Duration // the mean of a job's
	line              time.Duration // the mean from one line of a job to its next; 0: it prints none
	seed              uint64
	costs
}

// world is a control plane with its agents.
type world struct {
	*engine
	cfg       config
	db        *database
	instances []*instance
	shared    *station      // of the one machine
	pending   []*job        // the oldest first
	between   int           // jobs that have ended and whose successors are not stored yet
	leases    []*lease      // that are not over, and some that are
	back      time.Duration // when those who answer came back, after an outage
	servers   time.Duration // CPU time of all instances
	seen      seen
}

// seen is what is counted.
type seen struct {
	sent, answered, refused, missed int // heartbeats
	polls, logs, failed             int // calls: made, made, and without success (heartbeats left out)
	completed, lost                 int // jobs: reported, taken from an agent that ran them
	reaped, lapsed                  int // leases that ran out: accepted, and not
	lookups                         int // keys that the database was asked for
	late, pickup                    []time.Duration
}

func newWorld(cfg config) *world {
	w := &world{engine: newEngine(cfg.seed), cfg: cfg}
	if cfg.oneMachine {
		w.shared = newStation(w.engine, cfg.cores)
	}
	w.db = &database{engine: w.engine, cpu: w.cores(cfg.dbCores), disk: &disk{engine: w.engine, sync: cfg.sync}, network: cfg.network, reset: w.reset}
	for range cfg.instances {
		w.instances = append(w.instances, w.newInstance())
	}
	for i := range cfg.agents {
		a := &agent{w: w, number: i, home: w.instances[i%cfg.instances], wait: backOff{longest: longPause}}
		a.home.keys[i] = true
		if float64(i) >= cfg.busy*float64(cfg.agents) {
			w.after(w.upTo(pollWait), a.ask)
			continue
		}
		l := w.lease(a, &job{submitted: -1})
		l.accepted = true
		a.running = 1
		l.start()
		w.after(w.upTo(hold), func() {
			l.keep()
			a.ask()
		})
	}
	return w
}

func (w *world) cores(n int) *station {
	if w.shared != nil {
		return w.shared
	}
	return newStation(w.engine, n)
}

// reset ends what a machine that died was doing. Of the one machine, only processes die: their work goes on, for nobody.
func (w *world) reset(cpu *station) {
	if cpu != w.shared {
		cpu.reset()
	}
}

// connect finds a living instance, as a balancer would.
func (w *world) connect(a *agent) bool {
	n := len(w.instances)
	from := w.rand.IntN(n)
	for i := range n {
		if in := w.instances[(from+i)%n]; in.up {
			a.home = in
			return true
		}
	}
	return false
}

// submit hands a job in at some instance.
func (w *world) submit(j *job) {
	n := len(w.instances)
	from := w.rand.IntN(n)
	for i := range n {
		if in := w.instances[(from+i)%n]; in.up {
			in.submit(j)
			return
		}
	}
	w.after(time.Second, func() { w.submit(j) })
}

func (w *world) pend(j *job) { w.pending = append(w.pending, j) }

// lease offers a job.
func (w *world) lease(a *agent, j *job) *lease {
	l := &lease{
		a: a, j: j, until: w.now + ttl,
		beats: backOff{longest: beatPause}, reports: backOff{longest: longPause}, ships: backOff{longest: longPause},
	}
	w.leases = append(w.leases, l)
	return l
}

// due are leases that ran out, at most maxReaped.
func (w *world) due() (due []*lease) {
	live := w.leases[:0]
	for _, l := range w.leases {
		if l.over {
			continue
		}
		live = append(live, l)
		if l.until <= w.now && len(due) < maxReaped {
			due = append(due, l)
		}
	}
	w.leases = live
	return due
}

// reapers sweeps as long as the instance lives: first a TTL after its start, then every quarter of it.
func (w *world) reapers(in *instance, life int) {
	var sweep func()
	next := func() {
		w.after(ttl/4, func() {
			if in.life == life {
				sweep()
			}
		})
	}
	dbLife := w.db.life
	sweep = func() {
		began := w.now
		var due []*lease
		in.sql(in.pool, w.cfg.look, func() bool { due = w.due(); return false }, func(fine bool) {
			if !fine {
				in.away = true
				next()
				return
			}
			// Nobody's lease is ended while it couldn't be renewed, and for a TTL after.
			if in.away || w.db.life != dbLife || w.now-began > ttl/2 {
				in.away, dbLife, in.spare = false, w.db.life, w.now
			}
			if w.now-in.spare < ttl {
				due = nil
			}
			in.reap(due, next)
		})
	}
	w.after(ttl, func() {
		if in.life == life {
			sweep()
		}
	})
}

// reap ends leases one after the other, if they are still due.
func (in *instance) reap(due []*lease, then func()) {
	if len(due) == 0 {
		then()
		return
	}
	l, w := due[0], in.w
	expired := false
	in.alter(func() {
		if expired = !l.over && l.until <= w.now; !expired {
			return
		}
		l.over = true
		if l.accepted {
			w.seen.reaped++
		} else {
			w.seen.lapsed++
		}
		w.pend(l.j)
	}, func(fine bool) {
		if !fine {
			in.away = true
			then()
			return
		}
		if expired {
			in.tell(notice{pending: true})
		}
		in.reap(due[1:], then)
	})
}
