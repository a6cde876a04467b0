package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"agentd/agent/protocol"
)

// Why a job ended before its time.
var (
	errCancelled = errors.New("fleet: cancelled")
	errLost      = errors.New("fleet: the lease was lost")
)

// counters are what the agents count. All may be read at any time.
type counters struct {
	linked, running                    atomic.Int64 // now
	submitted, polls, empty, beats     atomic.Int64
	acks, completed, lost, faults, cut atomic.Int64
	logBytes                           atomic.Int64
	pickup, late, ship                 histogram
}

// fault counts a call that failed; what failed because the fleet ends doesn't count.
func (c *counters) fault(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if protocol.CodeOf(err) == "" {
		c.cut.Add(1)
	}
	c.faults.Add(1)
}

// Stats is what a fleet has done so far.
type Stats struct {
	Linked, Running int64   // now
	Submitted       int64   // jobs, by the fleet itself
	Polls, Empty    int64   // answered; of those without a job
	Heartbeats      int64   // answered
	Acks            int64   // log batches acknowledged
	LogBytes        int64   // in them
	Completed, Lost int64   // jobs: acknowledged; taken away
	Errors          int64   // calls that failed
	Unanswered      int64   // of those without the server's own word
	Pickup          Latency // from Submit's call to the offer's arrival, of the fleet's own jobs
	HeartbeatsLate  Latency // beyond the time that they asked to be held
	Ship            Latency // of a batch that was acknowledged
}

// Latency summarizes a distribution; each figure is at most 6 % above the true one.
type Latency struct {
	Count               int64
	P50, P99, P999, Max time.Duration
}

// Stats is the state now.
func (f *Fleet) Stats() Stats {
	c := &f.stats
	return Stats{
		Linked: c.linked.Load(), Running: c.running.Load(), Submitted: c.submitted.Load(), Polls: c.polls.Load(), Empty: c.empty.Load(),
		Heartbeats: c.beats.Load(), Acks: c.acks.Load(), LogBytes: c.logBytes.Load(), Completed: c.completed.Load(), Lost: c.lost.Load(),
		Errors: c.faults.Load(), Unanswered: c.cut.Load(), Pickup: c.pickup.summary(), HeartbeatsLate: c.late.summary(), Ship: c.ship.summary(),
	}
}

func (s Stats) String() string {
	return fmt.Sprintf("%d linked, %d running; %d polls, %d heartbeats, %d batches, %d completed, %d lost, %d errors",
		s.Linked, s.Running, s.Polls, s.Heartbeats, s.Acks, s.Completed, s.Lost, s.Errors)
}

func (l Latency) String() string {
	if l.Count == 0 {
		return "none"
	}
	r := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	return fmt.Sprintf("p50 %v, p99 %v, p99.9 %v, most %v of %d", r(l.P50), r(l.P99), r(l.P999), r(l.Max), l.Count)
}

// histogram counts durations in buckets a sixteenth of an octave wide or less, without a lock.
type histogram struct {
	buckets [16 * 40]atomic.Int64 // of microseconds, up to 2^40
	most    atomic.Int64          // nanoseconds
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucketOf(uint64(d.Microseconds()))].Add(1)
	for {
		m := h.most.Load()
		if int64(d) <= m || h.most.CompareAndSwap(m, int64(d)) {
			return
		}
	}
}

// bucketOf: below 16 exact; above, the octave and the four bits behind its first.
func bucketOf(us uint64) int {
	if us < 16 {
		return int(us)
	}
	octave := bits.Len64(us) - 5
	return min(16*(octave+1)+int(us>>octave&15), 16*40-1)
}

// ceiling is the most that a bucket holds.
func ceiling(bucket int) time.Duration {
	if bucket < 16 {
		return time.Duration(bucket) * time.Microsecond
	}
	octave := bucket/16 - 1
	return time.Duration((uint64(16+bucket%16)+1)<<octave-1) * time.Microsecond
}

func (h *histogram) summary() Latency {
	var counts [16 * 40]int64
	l := Latency{Max: time.Duration(h.most.Load())}
	for i := range h.buckets {
		counts[i] = h.buckets[i].Load()
		l.Count += counts[i]
	}
	at := func(p float64) time.Duration {
		left := int64(p * float64(l.Count))
		for i, n := range counts {
			if left -= n; left < 0 {
				return min(ceiling(i), l.Max)
			}
		}
		return l.Max
	}
	if l.Count > 0 {
		l.P50, l.P99, l.P999 = at(0.50), at(0.99), at(0.999)
	}
	return l
}
