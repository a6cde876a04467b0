package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	// tick paces what nobody waits for: cursors, epochs whose keeping is over, a disk that was full.
	tick = time.Second
	// idleRemoval: an open epoch of which everything is acknowledged is given back after so long
	// without a write, because making the next one costs some milliseconds.
	idleRemoval = time.Second
	// commitTries: a second fresh epoch that fails like the first means that it isn't the epoch.
	commitTries = 3
)

// Run writes, until ctx ends. Then it seals the open epoch, gives the directory back and returns.
// It may be called once.
func (s *Spool) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("spool: BUG: Run was called twice")
	}
	defer close(s.done)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	s.housekeep()
	for {
		select {
		case <-ctx.Done():
			return s.finish()
		case r := <-s.requests:
			s.commitGroup(s.group(r))
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
	var err error
	if s.open != nil {
		err = s.sealOpen()
	}
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

// group collects the calls that are under way, so that they share one fsync. It waits only for
// callers that have already come in.
func (s *Spool) group(r *request) []*request {
	group := []*request{r}
	size, count := r.size(), len(r.items)
	timer := time.NewTimer(groupWait)
	defer timer.Stop()
	for size < groupEnough && count < groupEntries/2 && s.inflight.Load() > int64(len(group)) {
		select {
		case r := <-s.requests:
			group = append(group, r)
			size, count = size+r.size(), count+len(r.items)
		case <-timer.C:
			return group
		}
	}
	return group
}

func (r *request) size() int {
	n := 0
	for _, it := range r.items {
		n += len(it.value)
	}
	return n
}

// commitGroup makes the group durable in as few transactions as fit, and answers.
func (s *Spool) commitGroup(group []*request) {
	var items []item
	for _, r := range group {
		items = append(items, r.items...)
	}
	var err error
	for len(items) > 0 && err == nil {
		n, size := 0, 0
		// Half of the entries are left for metas: each batch may be the first of its attempt.
		for n < len(items) && n < groupEntries/2 && (n == 0 || size+len(items[n].value) <= groupMax) {
			size += len(items[n].value)
			n++
		}
		err = s.commit(items[:n])
		items = items[n:]
	}
	for _, r := range group {
		r.answer <- err
		s.inflight.Add(-1)
	}
}

// commit makes one transaction durable. A handle that failed is never written to again: the epoch
// is sealed and what it refused goes into a new one.
func (s *Spool) commit(items []item) error {
	var err error
	for range commitTries {
		var e *epoch
		var entries []entry
		if e, entries, err = s.writable(items); err != nil {
			return err
		}
		start := time.Now()
		if err = e.kv.commit(entries); err == nil {
			s.committed(e, entries, items, time.Since(start))
			return nil
		}
		s.log.Error("commit failed, a new epoch is taken", zap.Uint64("epoch", e.id), zap.Error(err))
		if serr := s.sealOpen(); serr != nil {
			s.log.Error("failed epoch wasn't sealed", zap.Uint64("epoch", e.id), zap.Error(serr))
		}
	}
	if isFull(err) {
		return s.isFullNow(err)
	}
	return fmt.Errorf("spool: append: %w", err)
}

// writable returns the open epoch, or a new one when the entries don't fit.
func (s *Spool) writable(items []item) (*epoch, []entry, error) {
	if s.open != nil {
		if entries := s.entriesFor(s.open, items); s.open.room.fits(entries) {
			return s.open, entries, nil
		}
		if err := s.sealOpen(); err != nil {
			s.log.Error("epoch was sealed with an error", zap.Error(err))
		}
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
	entries := s.entriesFor(e, items)
	if !e.room.fits(entries) { // the disk only had room for a smaller epoch
		return nil, nil, s.isFullNow(fmt.Errorf("%w: %d entries don't fit an epoch", ErrFull, len(entries)))
	}
	return e, entries, nil
}

// entriesFor puts an attempt's meta before its first batch in an epoch.
func (s *Spool) entriesFor(e *epoch, items []item) []entry {
	entries := make([]entry, 0, len(items)+1)
	s.mu.Lock()
	defer s.mu.Unlock()
	met := map[string]bool{}
	for _, it := range items {
		if e.spans[it.attempt] == nil && !met[it.attempt] {
			met[it.attempt] = true
			k := appendKey(nil, key{kind: kindMeta, attempt: it.attempt})
			entries = append(entries, entry{k, appendValue(nil, k, header{}, s.attempt(it.attempt).meta)})
		}
		entries = append(entries, it.entry)
	}
	return entries
}

func (s *Spool) committed(e *epoch, entries []entry, items []item, took time.Duration) {
	e.room.add(entries)
	e.mu.Lock()
	defer e.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	sort := false
	for _, it := range items {
		if sp := e.ix.spans[it.attempt]; sp != nil && it.ref.first < sp.next {
			sort = true
		}
		a := s.attempt(it.attempt)
		if e.ix.spans[it.attempt] == nil {
			e.ix.setMeta(it.attempt, a.meta)
		}
		e.ix.add(it.attempt, it.ref)
		a.end = max(a.end, it.ref.next)
		s.appended++
		s.appendBytes += uint64(it.ref.valueLen) //nolint:gosec // > 0
	}
	if sort {
		e.ix.sort()
	}
	e.lastWrite = time.Now()
	s.cursorsDirty = true
	s.commits.observe(took)
}

// sealOpen ends the open epoch's life as such, whatever comes of it.
func (s *Spool) sealOpen() error {
	e := s.open
	s.open = nil
	return s.seal(e)
}

func (s *Spool) seal(e *epoch) error {
	closed, err := e.seal(s.log)
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
		if err := s.writeHoles(); err != nil {
			s.log.Warn("holes weren't written", zap.Error(err))
		}
	}
	if !s.cursorsDirty && !last {
		return
	}
	s.cursorsDirty = false
	if err := s.writeCursors(last); err != nil && !isFull(err) {
		s.log.Warn("cursors weren't written", zap.Error(err))
	}
}
