package shipper

import (
	"context"
	"errors"
	"time"

	"agentd/shipper/internal/queue"
)

// sealer has what it takes to make batches: memory that is reused from batch to batch. There are a
// few of them, shared by all logs, so that this memory is bounded, too.
type sealer struct {
	framer
	encoder

	packed []byte
}

// seal makes batches of all complete lines that were read, and of beginnings of lines that have
// waited long enough. The only error is queue.ErrFull: what was not sealed stays as it is.
func (l *Log) seal() error {
	w := <-l.s.sealers
	defer func() { l.s.sealers <- w }()
	l.sealMu.Lock()
	defer l.sealMu.Unlock()
	return l.sealWith(w, false)
}

// dropFill is how full memory must be for new output to be dropped, when that is the policy and the
// spool is full, too. Below it a batch still fits without touching the reserve.
const dropFill = 0.9

// sealOrDrop is seal, unless new output has nowhere to go.
func (l *Log) sealOrDrop() error {
	if l.s.mustDrop() && l.s.queue.Fill() > dropFill {
		l.s.dropNewest(l)
		return nil
	}
	return l.seal()
}

// sealWith does it; discard gives the numbers out, but keeps nothing. The caller holds sealMu.
func (l *Log) sealWith(w *sealer, discard bool) error {
	l.fresh.Store(0) // before looking: what comes in between is seen now and looked for again
	l.unseen.Store(0)
	now := time.Now()
	var end, cut [queue.Streams]bool
	for i := range end {
		end[i] = l.ended[i].Load()
		cut[i] = !l.partSince[i].IsZero() && now.Sub(l.partSince[i]) >= lineAge
	}
	w.begin(l.q, end, cut)
	first := l.q.Next()
	var err error
	for more := true; more && err == nil; {
		more = w.next(l.s.frameBytes)
		if w.count == 0 {
			break
		}
		used, parts := w.used()
		if discard {
			l.q.Skip(w.count, used, parts)
			l.s.numbersDropped(l, first, w.count)
		} else {
			err = l.append(w, first, used, parts)
		}
		first += w.count
		w.reset()
	}
	l.noteParts(w, now, err)
	if err == nil && l.closed.Load() && !l.complete.Load() {
		l.q.MarkClosed()
		l.complete.Store(true)
		l.s.logClosed(l)
	}
	return err
}

func (l *Log) append(w *sealer, first int64, used [queue.Streams]int64, parts uint8) error {
	encoding := l.s.sealEncoding(l)
	packed, err := w.frame(w.packed[:0], w.out, encoding)
	if err != nil {
		return err // can't be: the encoding was checked
	}
	w.packed = packed
	b := queue.Batch{First: first, Count: w.count, Encoding: encoding, Decoded: int64(len(w.out)), Oldest: w.oldest}
	if err := l.q.Append(b, packed, used, parts); err != nil {
		return err
	}
	l.s.batchSealed(l, w.count, int64(len(w.out)))
	return nil
}

// noteParts remembers which lines wait for their end. After a failure everything is looked at again, soon.
func (l *Log) noteParts(w *sealer, now time.Time, err error) {
	due := int64(0)
	for i := range w.streams {
		s := &w.streams[i]
		if len(s.pend) == 0 || s.end {
			l.partSince[i] = time.Time{}
			continue
		}
		if at := s.used(); l.partSince[i].IsZero() || l.partAt[i] != at || s.cut {
			l.partAt[i], l.partSince[i] = at, now
		}
		if d := l.partSince[i].Add(lineAge).UnixNano(); due == 0 || d < due {
			due = d
		}
	}
	if err != nil {
		due = now.Add(sealAge).UnixNano()
	}
	l.partDue.Store(due)
	if due > 0 {
		l.s.sealLater()
	}
}

// countAll is how many numbers the log will cover once everything that was read is sealed.
func (l *Log) countAll() int64 {
	w := <-l.s.sealers
	defer func() { l.s.sealers <- w }()
	l.sealMu.Lock()
	defer l.sealMu.Unlock()
	w.begin(l.q, [queue.Streams]bool{true, true, true}, [queue.Streams]bool{})
	n := l.q.Next()
	for more := true; more; {
		more = w.next(l.s.frameBytes)
		n += w.count
		w.reset()
	}
	return n
}

// sealLoop seals what has waited long enough.
func (s *Shipper) sealLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s.sealIdle.Store(true) // before looking: whoever comes after it knocks
		next := int64(0)
		now := time.Now().UnixNano()
		for _, l := range s.logsToSeal() {
			at := l.due()
			if at > 0 && at <= now {
				if err := l.sealOrDrop(); errors.Is(err, queue.ErrFull) {
					s.kickSpill()
				}
				at = l.due()
			}
			if at > 0 && (next == 0 || at < next) {
				next = at
			}
		}
		var wait <-chan time.Time
		if next > 0 {
			s.sealIdle.Store(false) // we will look by ourselves
			timer.Reset(max(time.Duration(next-time.Now().UnixNano()), time.Millisecond))
			wait = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-wait:
		case <-s.sealWake:
		}
	}
}

// sealLater wakes the seal loop, if it doesn't know of anything to do yet.
func (s *Shipper) sealLater() {
	if s.sealIdle.CompareAndSwap(true, false) {
		select {
		case s.sealWake <- struct{}{}:
		default:
		}
	}
}
