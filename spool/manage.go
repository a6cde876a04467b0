package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"
)

// openEpoch makes an epoch within the cap and within what the disk has left, smaller than usual if need be.
func (s *Spool) openEpoch() (*epoch, error) {
	s.mu.Lock()
	err := s.takeDir()
	s.mu.Unlock()
	if err != nil {
		if isFull(err) {
			return nil, s.isFullNow(err)
		}
		return nil, fmt.Errorf("spool: %w", err)
	}
	if e := s.takeSpare(); e != nil {
		return e, nil
	}
	if s.sealing != nil && !s.roomFor(2*s.epochSize) {
		s.awaitSeal(s.sealing) // what it gives back is needed, and what its closing writes must find room
	}
	for size := s.epochSize; size >= minEpochSize; size = s.smaller(size) {
		err = nil // of a larger one
		for !s.roomFor(size) {
			if err = ErrFull; !s.dropShipped() {
				break
			}
			err = nil
		}
		if err != nil {
			continue
		}
		id := s.nextID
		s.nextID++
		dir := filepath.Join(s.cfg.Dir, epochsDir, epochName(id))
		var e *epoch
		if e, err = createEpoch(dir, id, size, s.wrapKV, s.log); err == nil {
			s.mu.Lock()
			if s.full {
				s.full = false
				s.log.Info("spool has room again")
			}
			s.mu.Unlock()
			return e, nil
		}
		if _, serr := os.Stat(dir); serr == nil {
			s.trash(dir)
		}
		if !isFull(err) {
			return nil, fmt.Errorf("spool: epoch %d: %w", id, err)
		}
	}
	return nil, s.isFullNow(err)
}

func (s *Spool) smaller(size int64) int64 {
	if size > minEpochSize {
		return max(size/2, minEpochSize)
	}
	return 0
}

// roomFor says whether the cap and the file system allow that many more bytes.
func (s *Spool) roomFor(size int64) bool {
	s.mu.Lock()
	used := s.used()
	s.mu.Unlock()
	free, total, err := fsSpace(existingParent(s.cfg.Dir))
	return err == nil && used+size <= s.cfg.MaxSize && float64(free-size) >= s.cfg.MinFree*float64(total)
}

func (s *Spool) isFullNow(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.full {
		s.full = true
		s.log.Warn("spool is full", zap.Int64("used", s.used()), zap.Error(err))
	}
	if errors.Is(err, ErrFull) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrFull, err)
}

// housekeep removes what is acknowledged, and notices a disk that has room again.
func (s *Spool) housekeep() {
	s.mu.Lock()
	epochs := slices.Clone(s.epochs)
	s.mu.Unlock()
	freed := false
	for _, e := range epochs {
		if s.beingSealed(e) {
			continue // it comes again when that is over
		}
		e.mu.RLock()
		phase := e.phase
		e.mu.RUnlock()
		done, idle := s.settled(e)
		switch {
		case !done:
			if phase == phaseLingering {
				if err := s.seal(e); err != nil {
					s.log.Error("epoch was sealed with an error", zap.Uint64("epoch", e.id), zap.Error(err))
				}
			}
		case e == s.open && !idle:
		case e == s.open && !s.stillSettled(e):
		case s.cfg.KeepShipped > 0:
			freed = s.keep(e) || freed
		default:
			freed = s.remove(e) || freed
		}
	}
	s.mu.Lock()
	full := s.full
	s.mu.Unlock()
	if full && s.roomFor(minEpochSize) {
		freed = true
		s.mu.Lock()
		s.full = false
		s.mu.Unlock()
		s.log.Info("spool has room again")
	}
	if freed {
		s.mu.Lock()
		s.cursorsDirty = true
		s.notify()
		s.mu.Unlock()
	}
}

// stillSettled looks again when nothing is under way any more.
func (s *Spool) stillSettled(e *epoch) bool {
	s.barrier()
	done, idle := s.settled(e)
	return done && idle && !e.isBroken(s)
}

// settled says whether all of an epoch is acknowledged, and whether nothing was written to it lately.
func (s *Spool) settled(e *epoch) (done, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	idle = time.Since(e.lastWrite) >= idleRemoval
	for id, sp := range e.spans {
		if a := s.attempts[id]; a == nil || a.acked < sp.next {
			return false, idle
		}
	}
	return true, idle
}

// keep lets an acknowledged epoch stay until its time is over. It returns true when it went.
func (s *Spool) keep(e *epoch) bool {
	if e == s.open {
		s.dropSpare()
		if err := s.sealOpen(); err != nil {
			s.log.Error("epoch was sealed with an error", zap.Uint64("epoch", e.id), zap.Error(err))
		}
	}
	s.mu.Lock()
	since := e.shippedAt
	s.mu.Unlock()
	if since.IsZero() {
		since = time.Now()
		s.mu.Lock()
		e.shippedAt = since
		s.mu.Unlock()
		// Lost with the marker: only when its time began.
		if err := replaceFile(filepath.Join(e.dir, shippedName), nil, false); err != nil && !isFull(err) {
			s.log.Warn("epoch wasn't marked as shipped", zap.Uint64("epoch", e.id), zap.Error(err))
		}
	}
	return time.Since(since) >= s.cfg.KeepShipped && s.remove(e)
}

// dropShipped gives up the oldest epoch that is only kept to be read.
func (s *Spool) dropShipped() bool {
	s.mu.Lock()
	i := slices.IndexFunc(s.epochs, func(e *epoch) bool { return !e.shippedAt.IsZero() })
	var e *epoch
	if i >= 0 {
		e = s.epochs[i]
	}
	s.mu.Unlock()
	return e != nil && s.remove(e)
}

// remove takes an epoch away as a directory: renamed first, so that a crash leaves either all of it
// or trash. One with damage goes to quarantine instead.
func (s *Spool) remove(e *epoch) bool {
	s.awaitSeal(e)
	if err := e.discard(); err != nil {
		if isFull(err) {
			return false // it lingers, and the next tick tries again
		}
		s.log.Error("epoch was closed with an error", zap.Uint64("epoch", e.id), zap.Error(err))
	}
	if e == s.open {
		s.open = nil
		s.dropSpare()
	}
	s.forgetLoaded(e)
	var moved bool
	if _, err := os.Stat(filepath.Join(e.dir, damagedName)); err == nil {
		moved = s.moveTo(quarantineDir, e.dir, epochName(e.id))
	} else {
		moved = s.trash(e.dir)
	}
	quarantined := diskUsage(filepath.Join(s.cfg.Dir, quarantineDir))
	s.mu.Lock()
	s.quarantined = quarantined
	s.epochs = slices.DeleteFunc(s.epochs, func(x *epoch) bool { return x == e })
	for id := range e.spans {
		s.forget(id)
	}
	s.mu.Unlock()
	return moved
}

// DropOldest gives up the oldest epoch that holds something unacknowledged. What only it held
// becomes holes with the reason spoolFull, durably, before it goes. It returns the bytes of disk freed.
func (s *Spool) DropOldest() (int64, error) {
	var freed int64
	err := s.inRun(context.Background(), func() error {
		s.barrier()
		s.mu.Lock()
		before := s.used()
		s.mu.Unlock()
		s.housekeep()
		s.mu.Lock()
		if freed = before - s.used(); freed > 0 || len(s.epochs) == 0 {
			s.mu.Unlock()
			return nil // what is acknowledged was enough
		}
		e := s.epochs[0]
		freed = e.disk
		for id, sp := range e.spans {
			s.attempt(id).addHole(hole{First: sp.first, Next: sp.next, Reason: ReasonSpoolFull})
		}
		s.mu.Unlock()
		err := s.writeHoles()
		if err != nil && !isFull(err) {
			return fmt.Errorf("spool: holes: %w", err)
		}
		if !s.remove(e) {
			freed = 0
			return fmt.Errorf("spool: epoch %d couldn't be removed: %w", e.id, ErrFull)
		}
		if err != nil { // the disk was full: now there is room
			err = s.writeHoles()
		}
		s.mu.Lock()
		s.notify()
		s.mu.Unlock()
		return err
	})
	return freed, err
}

// Remove gives up all of an attempt's batches, as an operator asks for it. What wasn't acknowledged
// becomes a hole with the reason removed; the disk space comes back with the epochs.
func (s *Spool) Remove(ctx context.Context, id string) error {
	return s.inRun(ctx, func() error {
		s.mu.Lock()
		a := s.attempts[id]
		if a == nil {
			s.mu.Unlock()
			return fmt.Errorf("%w: %s", ErrUnknown, id)
		}
		if a.state == Orphan { // nobody waits for its holes
			a.acked = max(a.acked, a.end)
			a.holes = nil
		} else {
			first := a.end
			for _, e := range s.epochsOf(id) {
				first = min(first, e.spans[id].first)
			}
			a.addHole(hole{First: first, Next: a.end, Reason: ReasonRemoved})
		}
		a.end = max(a.end, a.acked)
		s.holesDirty = true
		s.cursorsDirty = true
		s.mu.Unlock()
		err := s.writeHoles()
		s.housekeep()
		return err
	})
}
