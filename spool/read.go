package spool

import (
	"fmt"
	"io"
	"slices"

	"go.uber.org/zap"
)

// Read returns the batch that covers from; its First may be below. A *HoleError says that from is
// lost, and up to where: the caller ships a gap of exactly that range and goes on at its Next.
// io.EOF: nothing is held at or after from. Numbers below what the spool ever held of the attempt
// are a hole to it too: ask it only for what it lists.
func (s *Spool) Read(id string, from int64) (Batch, error) {
	for {
		s.mu.Lock()
		a := s.attempts[id]
		if a == nil || from >= a.end {
			s.mu.Unlock()
			return Batch{}, io.EOF
		}
		end := a.end
		holes := slices.Clone(a.holes)
		epochs := s.epochsOf(id)
		s.mu.Unlock()

		if h, ok := holeAt(holes, from); ok && h.Reason == ReasonRemoved {
			return Batch{}, &HoleError{Attempt: id, First: from, Next: h.Next, Reason: h.Reason}
		}
		b, ok, again, err := s.readFrom(epochs, id, from)
		if ok || err != nil {
			return b, err
		}
		if again { // an epoch changed its state between our look at it and the reading
			continue
		}
		return Batch{}, s.hole(epochs, id, from, end, holes)
	}
}

func holeAt(holes []hole, n int64) (hole, bool) {
	for _, h := range holes {
		if h.First <= n && n < h.Next {
			return h, true
		}
	}
	return hole{}, false
}

// readFrom tries every epoch that may hold the batch. An error is one that has nothing to do with
// what is stored, such as a lack of descriptors: it must not become a hole.
func (s *Spool) readFrom(epochs []*epoch, id string, from int64) (_ Batch, ok, again bool, _ error) {
	for _, e := range epochs {
		if !s.spans(e, id, from) {
			continue
		}
		if err := s.loadEpoch(e); err != nil {
			return Batch{}, false, false, fmt.Errorf("spool: epoch %d: %w", e.id, err)
		}
		b, q, found, err := e.read(id, from)
		if !found {
			e.mu.RLock()
			again = again || e.phase == phaseGone && s.listed(e) || e.phase != phaseGone && e.ix.refs == nil
			e.mu.RUnlock()
			continue
		}
		if err == nil {
			return b, true, false, nil
		}
		s.log.Error("batch was damaged", zap.String("attempt", id), zap.Int64("first", q.first),
			zap.Uint64("epoch", e.id), zap.Error(err))
		e.lose(id, q)
		s.mu.Lock()
		s.corrupt++
		e.damaged = true
		s.mu.Unlock()
		again = true // it may be there twice
	}
	return Batch{}, false, again, nil
}

func (s *Spool) spans(e *epoch, id string, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := e.spans[id]
	return sp != nil && sp.first <= n && n < sp.next
}

func (s *Spool) listed(e *epoch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.epochs, e)
}

// hole computes the exact range that is lost at from: up to the next batch that is there, the end
// of the attempt, or where the reason changes.
func (s *Spool) hole(epochs []*epoch, id string, from, end int64, holes []hole) error {
	next, reason := end, ReasonMissing
	for _, e := range epochs {
		s.mu.Lock()
		sp := e.spans[id]
		relevant := sp != nil && sp.next > from && sp.first < next
		s.mu.Unlock()
		if !relevant {
			continue
		}
		if err := s.loadEpoch(e); err != nil {
			return fmt.Errorf("spool: epoch %d: %w", e.id, err)
		}
		e.mu.RLock()
		if e.phase != phaseGone && e.ix.refs == nil { // unloaded again by another reader
			e.mu.RUnlock()
			return s.hole(epochs, id, from, end, holes)
		}
		if n, ok := e.ix.after(id, from); ok {
			next = min(next, n)
		}
		if e.ix.covers(id, from) {
			reason = ReasonCorrupt
		}
		e.mu.RUnlock()
	}
	for _, h := range holes {
		if h.First > from {
			next = min(next, h.First)
		} else if from < h.Next {
			next, reason = min(next, h.Next), h.Reason
		}
	}
	return &HoleError{Attempt: id, First: from, Next: next, Reason: reason}
}

// loadEpoch loads a sealed epoch's entries, and unloads the ones that were used longest ago.
func (s *Spool) loadEpoch(e *epoch) error {
	if _, err := e.load(); err != nil {
		return err
	}
	e.mu.RLock()
	sealed := e.phase == phaseSealed
	e.mu.RUnlock()
	if sealed {
		s.touch(e)
	}
	return nil
}

// touch moves an epoch to the end of the list of loaded ones.
func (s *Spool) touch(e *epoch) {
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	s.loaded = append(slices.DeleteFunc(s.loaded, func(x *epoch) bool { return x == e }), e)
	for len(s.loaded) > maxLoaded {
		s.loaded[0].unload()
		s.loaded = s.loaded[1:]
	}
}

func (s *Spool) forgetLoaded(e *epoch) {
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	s.loaded = slices.DeleteFunc(s.loaded, func(x *epoch) bool { return x == e })
}
