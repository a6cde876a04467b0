package shipper

import (
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
	"agentd/spool"
)

const (
	// slowRetry is for answers that no retry is likely to change; stoppedRetry for a person's decision (protocol.md §1).
	slowRetry    = time.Minute
	stoppedRetry = 5 * time.Minute
	// corruptMost: the third time the same batch arrives damaged, the damage isn't on the way.
	corruptMost = 3
	// deadMost: so many records in a row were refused that it may be the server that is wrong. The
	// next ones are tried with pauses, so that a bad hour doesn't dead-letter a whole log.
	deadMost = 3
	// wholeAgain is where a body that was made smaller may be a whole batch again.
	wholeAgain = 1 << 20
)

// settle does what the answer to a request says: the table of protocol.md §1, for logs.
func (s *Shipper) settle(l *lane, b *shipment, next int64, err error, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.accepted(l, b, next, took)
		return
	}
	switch action := protocol.ActionFor(err); action {
	case protocol.Bisect:
		s.refused(l, b, err)
	case protocol.Halve:
		s.tooLarge(l, b, err)
	case protocol.Rebuild:
		s.damaged(l, b, err)
	case protocol.Reencode:
		s.wrongEncoding(l, b, err)
	case protocol.Rewind:
		s.rewind(l, err)
	case protocol.Orphan:
		s.orphaned(l, err)
	case protocol.Throttle:
		wait, asked := protocol.RetryAfter(err)
		if !asked {
			wait = l.pace.NextBackOff()
		}
		s.link.pausedUntil = time.Now().Add(wait) // the whole endpoint, not this lane
		s.failed(l, err, action, 0)
	case protocol.StopRevoked, protocol.StopConflict:
		s.failed(l, err, action, stoppedRetry)
	case protocol.RetrySlow:
		s.failed(l, err, action, slowRetry)
	default: // transport errors, 5xx, 401 after the client has re-linked in vain, lease_lost: a log has no lease
		s.failed(l, err, action, 0)
	}
}

func (s *Shipper) accepted(l *lane, b *shipment, next int64, took time.Duration) {
	s.link.took(b.size, took)
	s.counters.shippedBytes.Add(b.size)
	if end := max(s.end(l), l.next); next > end {
		next = end // it can't have what we never gave a number to
	}
	if next <= l.next && b.body.Count > 0 {
		s.failed(l, errNoProgress, protocol.Retry, 0) // or we would ask the same again at once, for ever
		return
	}
	s.advance(l, next)
	l.heardAt = time.Now()
	if b.body.Final && next >= b.end {
		l.finalSaid = true
	}
	l.corrupt, l.alone = 0, false
	if !b.gap {
		l.dead = 0
	}
	if l.maxRecords > 0 {
		if l.maxRecords *= 2; l.maxRecords > wholeAgain || b.end >= b.batch.end() && !b.gap && l.maxRecords > b.batch.count {
			l.maxRecords = 0
		}
	}
	s.recoveredFrom(l)
}

// recoveredFrom ends a row of failures.
func (s *Shipper) recoveredFrom(l *lane) {
	if l.fails > 0 {
		s.cfg.Logger.Info("log upload recovered", zap.String("job", l.ref.JobID), zap.Int64("attempt", l.ref.Attempt),
			zap.Int("failures", l.fails), zap.Duration("after", time.Since(l.since)))
	}
	l.trouble, l.wakeAt = trouble{}, time.Time{}
	l.pace.Reset()
}

// failed makes l wait. Only the first failure of a kind in a row is logged.
func (s *Shipper) failed(l *lane, err error, action protocol.Action, atLeast time.Duration) {
	wait := l.pace.NextBackOff() + atLeast
	if asked, ok := protocol.RetryAfter(err); ok {
		wait += asked
	}
	now := time.Now()
	l.wakeAt = now.Add(wait)
	s.counters.retries.Add(1)
	if l.fails == 0 {
		l.since = now
	}
	if l.fails == 0 || l.action != action {
		s.cfg.Logger.Warn("log upload failed", zap.String("job", l.ref.JobID), zap.Int64("attempt", l.ref.Attempt),
			zap.Int64("next", l.next), zap.Stringer("action", action), zap.Error(err))
	}
	l.fails++
	l.action = action
}

// refused narrows a refusal down to one record, which goes to the dead letters.
func (s *Shipper) refused(l *lane, b *shipment, err error) {
	switch {
	case b.gap || b.body.Count == 0: // nothing smaller than a gap exists
		s.failed(l, err, protocol.Bisect, 0)
	case b.one:
		s.deadLetter(l, b, err)
	default:
		l.alone = true
		l.maxRecords = max(1, min(b.body.Count, b.batch.count)/2)
	}
}

func (s *Shipper) tooLarge(l *lane, b *shipment, err error) {
	switch {
	case b.gap || b.body.Count == 0:
		s.failed(l, err, protocol.Halve, 0)
	case b.one:
		s.deadLetter(l, b, err)
	case s.link.tooLarge(b.size, time.Now()):
		s.cfg.Logger.Info("log body limit lowered", zap.Int64("bytes", s.link.learned), zap.Error(err))
	case b.batches == 1:
		l.maxRecords = max(1, b.body.Count/2) // it was within the limit already, so it isn't the bytes as sent
	default:
		l.alone = true
	}
}

// damaged builds the body again: alone first, then compressed anew, then it is given up.
func (s *Shipper) damaged(l *lane, b *shipment, err error) {
	s.counters.corrupt.Add(1)
	switch {
	case b.gap || b.body.Count == 0:
		s.failed(l, err, protocol.Rebuild, 0)
	case !l.alone && b.batches > 1:
		l.alone = true
	default:
		l.alone = true
		if l.corrupt++; l.corrupt >= corruptMost {
			l.corrupt = 0
			s.deadLetter(l, b, err)
			return
		}
		s.failed(l, err, protocol.Rebuild, 0)
	}
}

func (s *Shipper) wrongEncoding(l *lane, b *shipment, err error) {
	if id, ok := encodingOf(b.body.Encoding); ok && id != encIdentity && !s.link.refused[id] {
		s.link.refused[id] = true
		s.cfg.Logger.Warn("log encoding refused", zap.String("encoding", b.body.Encoding), zap.Error(err))
		return // at once, in another one
	} else if ok && b.body.Encoding != EncodingName(s.link.other()) {
		return // another lane has learned it meanwhile
	}
	s.failed(l, err, protocol.Reencode, slowRetry)
}

// deadLetter puts what b covers aside for the operator. A gap record ships in its place.
func (s *Shipper) deadLetter(l *lane, b *shipment, err error) {
	first := max(b.body.First, l.next)
	reason := err.Error()
	if s.cfg.Spool != nil {
		id, _ := encodingOf(b.body.Encoding)
		data := stored{parts: b.body.Frames}.joined()
		dead := spool.Batch{Attempt: l.key, First: b.body.First, Count: b.body.Count, Encoding: id, Decoded: b.batch.decoded, Data: data}
		if err := s.cfg.Spool.DeadLetter(dead, reason); err != nil {
			s.failed(l, err, protocol.Retry, 0) // not before it is safe
			return
		}
	}
	s.cfg.Logger.Error("records were dead-lettered", zap.String("job", l.ref.JobID), zap.Int64("attempt", l.ref.Attempt),
		zap.Int64("first", first), zap.Int64("count", b.end-first), zap.String("reason", reason))
	s.addGap(l, span{first: first, next: b.end, reason: protocol.GapDeadLetter, dead: true})
	l.maxRecords, l.alone = max(1, l.maxRecords), false
	if l.dead++; l.dead >= deadMost {
		s.failed(l, err, protocol.Bisect, 0)
	}
}

// rewind goes on where the server says that its log ends.
func (s *Shipper) rewind(l *lane, err error) {
	next := errNext(err)
	switch {
	case next > l.next:
		s.advance(l, min(next, max(s.end(l), l.next)))
	case next < l.next:
		// It had said that it has these. What we still hold is sent again; the rest becomes a gap.
		s.cfg.Logger.Error("server lost records that it had acknowledged", zap.String("job", l.ref.JobID),
			zap.Int64("attempt", l.ref.Attempt), zap.Int64("first", next), zap.Int64("count", l.next-next))
		s.counters.acked.Add(next - l.next)
		l.next = next
	}
	s.failed(l, err, protocol.Rewind, 0)
}

// orphaned keeps the log for the operator: it goes to the spool as a whole, and isn't shipped.
func (s *Shipper) orphaned(l *lane, err error) {
	if l.orphan {
		return
	}
	l.orphan = true
	s.cfg.Logger.Warn("log was orphaned: the server does not know the attempt", zap.String("job", l.ref.JobID),
		zap.Int64("attempt", l.ref.Attempt), zap.Int64("first", l.next), zap.Error(err))
	if s.cfg.Spool != nil {
		s.cfg.Spool.SetState(l.key, spool.Orphan)
		knock(s.spilWake)
		return
	}
	s.dropOrphan(l)
}

// dropOrphan gives an orphan's records up where there is no spool to keep them in: or its job would
// fill its share of memory and stand still.
func (s *Shipper) dropOrphan(l *lane) {
	end := s.end(l)
	if end <= l.next {
		return
	}
	s.addGap(l, span{first: l.next, next: end, reason: protocol.GapDeadLetter, dead: true})
	l.next, l.gaps = end, nil
	if l.q != nil {
		l.q.Release(end)
	}
}
