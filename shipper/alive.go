package shipper

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// stuckAfter is how long a loop may owe what is due before it counts as stuck. Disks that are being
// rebuilt, and machines that page, take many seconds; a minute of nothing is no delay any more.
const stuckAfter = time.Minute

// stamps are what Alive judges by.
type stamps struct {
	shipLooked atomic.Int64 // when the ship loop last looked for work, in unix nanoseconds
	spillBegan atomic.Int64 // since when the spool has been asked to take a group; 0 = it isn't
	lockedOut  atomic.Int64 // since when Alive has found the mutex taken; 0 = it wasn't
}

func since(stamp *atomic.Int64, now time.Time) time.Duration {
	at := stamp.Load()
	if at == 0 {
		return 0
	}
	return now.Sub(time.Unix(0, at))
}

// Alive answers nil while every loop does what is due, else which one doesn't. Loops that have nothing to do may sleep for as
// long as they like: what counts is work that waits for nobody. It never blocks; a watchdog may ask it.
func (s *Shipper) Alive() error {
	now := time.Now()
	if d := since(&s.stamps.spillBegan, now); d > stuckAfter {
		return fmt.Errorf("shipper: the spool has been taking one group for %v", d.Round(time.Second))
	}
	if !s.mu.TryLock() {
		s.stamps.lockedOut.CompareAndSwap(0, now.UnixNano())
		if d := since(&s.stamps.lockedOut, now); d > stuckAfter {
			return fmt.Errorf("shipper: one step has taken %v", d.Round(time.Second))
		}
		return nil
	}
	defer s.mu.Unlock()
	s.stamps.lockedOut.Store(0)
	free := s.queue.Fill() < dropFill // full memory is a reason to wait
	for _, l := range s.order {
		if l.log == nil || !free {
			continue
		}
		if due := l.log.due(); due > 0 && now.Sub(time.Unix(0, due)) > stuckAfter {
			return fmt.Errorf("shipper: output of job %s has waited %v to be sealed", l.ref.JobID, now.Sub(time.Unix(0, due)).Round(time.Second))
		}
	}
	if len(s.ready) > 0 && s.flights.all == 0 && now.After(s.link.pausedUntil) && since(&s.stamps.shipLooked, now) > stuckAfter {
		return errors.New("shipper: batches wait, and nothing ships them")
	}
	return nil
}
