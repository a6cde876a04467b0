package shipper

import (
	"cmp"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"agentd/agent/protocol"
	"agentd/shipper/internal/queue"
)

// lane is an attempt on its way to the server. All fields are guarded by Shipper.mu; while flying
// is set, next and what it was planned from are moved by the one request only.
type lane struct {
	key string
	ref protocol.AttemptRef
	log *Log           // nil when nothing of it is in memory
	q   *queue.Attempt // log's

	asked        bool      // next is the server's word, not only what we remember
	next         int64     // everything below it is stored at the server
	heardAt      time.Time // when the server last took something, or was about to be asked without a failure before
	spoolNext    int64     // everything below it is, or was, in the spool; the rest is in memory
	spooledSince time.Time // when the oldest record of what went to the spool was read; zero = unknown
	gaps         []span    // numbers at or above next that stand for nothing any more
	orphan       bool      // the server doesn't know the attempt
	memoryLost   bool      // what memory held of it is gone; see MemoryLost
	lostTo       int64     // how many numbers the log has; 0 = nobody knows
	final        bool      // the server must be told where the log ends
	finalSaid    bool

	queued   bool // in ready or asleep
	flying   bool // has a request under way
	spilling bool // is being written to the spool
	wakeAt   time.Time
	pace     backoff.BackOff
	trouble

	maxRecords int64 // bisecting: how many records the next body may have; 0 = any number
	alone      bool  // one batch a body: something is wrong with one of several
	dead       int64 // dead-lettered in a row
	corrupt    int   // answers in a row that the body was damaged
}

// span is a stretch of numbers that are lost, and why.
type span struct {
	first, next int64
	reason      string
	dead        bool
}

func (s *Shipper) addLane(l *lane) {
	l.pace = protocol.NewBackOff(0)
	s.lanes[l.key] = l
	s.order = append(s.order, l)
}

// end is the number after the last that l holds now.
func (s *Shipper) end(l *lane) int64 {
	if l.q == nil {
		return l.spoolNext
	}
	return max(l.q.Next(), l.spoolNext)
}

// shippable is how far l may ship: with strict durability only what the spool has.
func (s *Shipper) shippable(l *lane) int64 {
	if s.cfg.Durability == DurabilityStrict {
		return l.spoolNext
	}
	return s.end(l)
}

func (l *lane) complete() bool { return l.log == nil || l.log.complete.Load() }

func (s *Shipper) hasWork(l *lane) bool {
	if l.orphan {
		return false
	}
	return !l.asked || l.next < s.shippable(l) || l.complete() && l.next >= s.end(l)
}

// replaying says that l's next records come from the spool.
func (l *lane) replaying() bool { return l.next < l.spoolNext }

// wake puts l in the queue for a request, if it has anything to ship. The caller holds mu.
func (s *Shipper) wake(l *lane) {
	if l.queued || l.flying || !s.hasWork(l) {
		return
	}
	l.queued = true
	if l.fails == 0 {
		l.heardAt = time.Now()
	}
	s.ready = append(s.ready, l)
	knock(s.shipWake)
}

// advance takes the server's word that everything below next is stored: the only thing that lets us forget.
func (s *Shipper) advance(l *lane, next int64) {
	if next <= l.next {
		return
	}
	stored := next - l.next
	for _, g := range l.gaps {
		stored -= max(0, min(g.next, next)-max(g.first, l.next))
	}
	s.counters.acked.Add(stored)
	l.next = next
	l.gaps = slices.DeleteFunc(l.gaps, func(g span) bool { return g.next <= next })
	if s.cfg.Spool != nil { // it may hold a part of what it refused
		s.cfg.Spool.Ack(l.key, next)
	}
	s.release(l)
}

// release gives back the memory of what is at the server or in the spool. Not while a request is
// under way or the spool is being written: what they are made of lies there.
func (s *Shipper) release(l *lane) {
	if l.q == nil || l.flying || l.spilling {
		return
	}
	l.q.Release(max(l.next, l.spoolNext))
	if l.complete() && l.spoolNext >= l.q.Next() && l.spoolNext > 0 {
		l.q.End() // all of it is in the spool: the slot is free for another attempt
		l.q, l.log = nil, nil
	}
}

// settleEnd forgets l when there is nothing more to do for it. The caller holds mu.
func (s *Shipper) settleEnd(l *lane) {
	if l.flying || l.spilling || l.orphan && s.cfg.Spool != nil || !l.asked && !l.orphan || !l.complete() || l.next < s.end(l) || l.final && !l.finalSaid && !l.orphan {
		return
	}
	end := max(s.end(l), l.next)
	if l.q != nil {
		l.q.End()
	}
	delete(s.lanes, l.key)
	s.order = slices.DeleteFunc(s.order, func(o *lane) bool { return o == l })
	s.ready = slices.DeleteFunc(s.ready, func(o *lane) bool { return o == l })
	delete(s.asleep, l)
	s.ended[l.key] = end
	s.endedRing = append(s.endedRing, l.key)
	if len(s.endedRing) > endedKept {
		delete(s.ended, s.endedRing[0])
		s.endedRing = s.endedRing[1:]
	}
	s.tellChanged() // not only requests end a lane: the spool may have taken its last batch after the server had
}

// tellChanged wakes all who wait for lanes to get on. The caller holds mu.
func (s *Shipper) tellChanged() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Final says that the attempt will get no completion (its lease is lost), so that the log itself
// tells the server where it ends. Repeating it is harmless.
func (s *Shipper) Final(ref protocol.AttemptRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(ref)
	l := s.lanes[key]
	if l == nil {
		end, known := s.ended[key]
		if !known {
			return
		}
		l = &lane{key: key, ref: ref, asked: true, next: end} // nothing is held of it but its length
		s.addLane(l)
	}
	l.final = true
	s.wake(l)
}

// addGap notes that numbers are lost. What is known to be lost isn't lost again; neighbours with
// one reason are one gap.
func (s *Shipper) addGap(l *lane, g span) {
	for _, o := range slices.Clone(l.gaps) { // sorted, and none overlaps another
		if o.next <= g.first || o.first >= g.next {
			continue
		}
		if o.first > g.first {
			before := g
			before.next = o.first
			s.insertGap(l, before)
		}
		g.first = o.next
	}
	if g.first < g.next {
		s.insertGap(l, g)
	}
}

func (s *Shipper) insertGap(l *lane, g span) {
	if g.dead {
		s.counters.dead.Add(g.next - g.first)
	} else {
		s.counters.gap(g.reason, g.next-g.first)
	}
	i, _ := slices.BinarySearchFunc(l.gaps, g, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	if i > 0 && l.gaps[i-1].next == g.first && l.gaps[i-1].reason == g.reason {
		l.gaps[i-1].next = g.next
		return
	}
	l.gaps = slices.Insert(l.gaps, i, g)
}

// gapAt is why number n is lost, as far as we know.
func (l *lane) gapAt(n int64) string {
	for _, g := range l.gaps {
		if g.first <= n && n < g.next {
			return g.reason
		}
	}
	return protocol.GapDamaged
}

// lost is how many numbers of a stretch stand for nothing.
func (l *lane) lost(first, next int64) (n int64) {
	for _, g := range l.gaps {
		n += max(0, min(g.next, next)-max(g.first, first))
	}
	return n
}
