package main

import (
	"slices"
	"time"
)

// station is a queue before some servers, the cores of a machine, say: first come, first served.
type station struct {
	*engine
	queue []piece
	under []piece         // way, by server
	free  []time.Duration // from when each server is free
	work  time.Duration   // that was begun so far
	life  int             // counts resets
}

type piece struct {
	work time.Duration
	gone *bool // nil, or set: nobody waits for it any more, and it is dropped when its turn comes
	done func()
}

func newStation(e *engine, servers int) *station {
	return &station{engine: e, under: make([]piece, servers), free: make([]time.Duration, servers)}
}

// serve calls done when the work has been done.
func (s *station) serve(work time.Duration, gone *bool, done func()) {
	s.queue = append(s.queue, piece{work, gone, done})
	s.next()
}

// next begins what can be begun.
func (s *station) next() {
	for i, at := range s.free {
		if at > s.now {
			continue
		}
		for len(s.queue) > 0 && s.queue[0].gone != nil && *s.queue[0].gone {
			s.queue = s.queue[1:]
		}
		if len(s.queue) == 0 {
			return
		}
		p := s.queue[0]
		s.queue = s.queue[1:]
		s.under[i], s.free[i] = p, s.now+p.work
		s.work += p.work
		life := s.life
		s.after(p.work, func() {
			if s.life != life {
				return
			}
			s.under[i] = piece{}
			p.done()
			s.next()
		})
	}
}

// used is the servers' working time up to now.
func (s *station) used() time.Duration {
	used := s.work
	for _, at := range s.free {
		used -= max(0, at-s.now)
	}
	return used
}

// reset ends at once what is queued and under way: the machine died, as who asked for it must know by other means.
func (s *station) reset() {
	s.work = s.used()
	ended := slices.Concat(s.under, s.queue)
	s.queue = nil
	s.life++
	for i := range s.free {
		s.under[i], s.free[i] = piece{}, s.now
	}
	for _, p := range ended {
		if p.done != nil {
			p.done()
		}
	}
}

// disk makes commits durable: those that wait together share one sync.
type disk struct {
	*engine
	sync    time.Duration // the mean
	waiting []func()
	busy    bool
	used    time.Duration
}

func (d *disk) commit(done func()) {
	d.waiting = append(d.waiting, done)
	if !d.busy {
		d.next()
	}
}

func (d *disk) next() {
	batch := d.waiting
	d.waiting, d.busy = nil, len(batch) > 0
	if !d.busy {
		return
	}
	took := d.about(d.sync)
	d.used += took
	d.after(took, func() {
		for _, done := range batch {
			done()
		}
		d.next()
	})
}
