package spool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// tick paces what nobody waits for: cursors, epochs whose keeping is over, a disk that was full.
	tick = time.Second
	// idleRemoval: an open epoch of which everything is acknowledged is given back after so long
	// without a write, because making the next one costs some milliseconds.
	idleRemoval = time.Second
)

// Run writes, until ctx ends. Then it seals the open epoch, gives the directory back and returns.
// It may be called once.
func (s *Spool) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("spool: BUG: Run was called twice")
	}
	defer close(s.done)
	var syncer sync.WaitGroup
	syncer.Go(s.syncLoop)
	defer syncer.Wait()
	defer close(s.syncs)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	s.housekeep()
	for {
		s.retry()
		select {
		case <-ctx.Done():
			return s.finish()
		case r := <-s.requests:
			s.arriving.Add(-1)
			s.commitGroup(s.group(r))
		case <-s.failed:
		case f := <-s.commands:
			f()
		case <-s.kick:
			s.housekeep()
		case <-ticker.C:
			s.housekeep()
			s.persist(false)
		}
	}
}

// Close gives the directory back when Run was never called.
func (s *Spool) Close() error {
	if !s.running.CompareAndSwap(false, true) {
		return nil
	}
	close(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unlock()
}

func (s *Spool) finish() error {
	s.settleAll()
	var err error
	if s.open != nil {
		err = s.sealOpen()
	}
	s.dropSpare()
	s.behind.Wait()
	s.housekeep()
	s.persist(true)
	s.mu.Lock()
	epochs := s.epochs
	s.mu.Unlock()
	for _, e := range epochs {
		e.unload()
		e.mu.RLock()
		if e.phase == phaseLingering {
			// Closing it would end the process on a full disk. What it holds is durable; the next
			// start reads it as it reads one after a crash.
			s.log.Warn("epoch stayed open on a full disk", zap.Uint64("epoch", e.id))
		}
		e.mu.RUnlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = errors.Join(err, s.unlock()); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// writable returns the open epoch, or a new one when the entries don't fit.
func (s *Spool) writable(items []item) (*epoch, []entry, error) {
	if s.open != nil {
		if entries := entriesFor(s.open, items); s.open.room.fits(entries) {
			s.prepare()
			return s.open, entries, nil
		}
		s.sealBehind()
		s.housekeep()
	}
	e, err := s.openEpoch()
	if err != nil {
		return nil, nil, err
	}
	s.open = e
	s.mu.Lock()
	s.epochs = append(s.epochs, e)
	s.mu.Unlock()
	entries := entriesFor(e, items)
	if !e.room.fits(entries) { // the disk only had room for a smaller epoch
		return nil, nil, s.isFullNow(fmt.Errorf("%w: %d entries don't fit an epoch", ErrFull, len(entries)))
	}
	return e, entries, nil
}

// entriesFor puts an attempt's meta before its first batch in an epoch.
func entriesFor(e *epoch, items []item) []entry {
	entries := make([]entry, 0, len(items)+1)
	met := map[string]bool{}
	for _, it := range items {
		if !e.met[it.attempt] && !met[it.attempt] {
			met[it.attempt] = true
			k := appendKey(nil, key{kind: kindMeta, attempt: it.attempt})
			entries = append(entries, entry{key: k, value: appendValue(nil, k, header{}, it.meta)})
		}
		entries = append(entries, it.entry)
	}
	return entries
}

// sealOpen ends the open epoch's life as such, whatever comes of it.
func (s *Spool) sealOpen() error {
	s.barrier()
	e := s.open
	s.open = nil
	return s.seal(e)
}

func (s *Spool) seal(e *epoch) error {
	s.log.Debug("epoch is being sealed", zap.Uint64("epoch", e.id))
	closed, err := e.seal(s.log)
	s.log.Debug("epoch was sealed", zap.Uint64("epoch", e.id), zap.Bool("lingers", !closed))
	if !closed {
		return nil // it lingers
	}
	e.mu.Lock()
	spans := e.ix.spans
	e.ix.spans = nil
	e.mu.Unlock()
	disk := diskUsage(e.dir)
	s.mu.Lock()
	e.spans, e.disk = spans, disk
	s.mu.Unlock()
	s.touch(e)
	return err
}

func (s *Spool) persist(last bool) {
	s.mu.Lock()
	holes := s.holesDirty
	s.mu.Unlock()
	if holes {
		if err := s.writeHoles(); err != nil && !isFull(err) {
			s.log.Warn("holes weren't written", zap.Error(err))
		}
	}
	s.mu.Lock()
	dirty := s.cursorsDirty
	s.cursorsDirty = false
	s.mu.Unlock()
	if !dirty && !last {
		return
	}
	if err := s.writeCursors(last); err != nil && !isFull(err) {
		s.log.Warn("cursors weren't written", zap.Error(err))
	}
}
