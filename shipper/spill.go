package shipper

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
	"agentd/spool"
)

const (
	// spillFill is how full memory may be before the oldest batches go to the spool: the rest takes
	// what jobs print while the disk works.
	spillFill = 0.7
	// spillAge is how long a batch may wait for the server: the bound on what a power cut costs.
	spillAge = 2 * time.Second
	// spillTick is how often the age is looked at; a quarter of it at most is added to the bound.
	spillTick = spillAge / 4
	// spillGroup is what goes to the spool at a time: as much as it commits in one go.
	spillGroup = 1 << 20
	// fullRetry is how often a full spool is tried again when nobody says that space was freed.
	fullRetry = time.Second
)

// spillable is one lane's batches, in order, on their way to the spool.
type spillable struct {
	lane    *lane
	batches []stored
	holes   []hole
	next    int64 // everything below it will be in the spool
	oldest  int64 // when the oldest byte of it was read
}

// spillLoop moves to the spool what can't wait in memory.
func (s *Shipper) spillLoop(ctx context.Context) {
	if s.cfg.Spool == nil {
		<-ctx.Done()
		return
	}
	timer := time.NewTimer(spillTick)
	defer timer.Stop()
	for ctx.Err() == nil {
		s.spillIdle.Store(true) // before looking
		var full <-chan struct{}
		wait := spillTick
		if s.spoolOut.Load() {
			full, wait = s.cfg.Spool.Changed(), fullRetry
		}
		if group := s.spillable(false); len(group) > 0 {
			err := s.spill(ctx, group)
			if err == nil {
				continue
			}
			if ctx.Err() == nil && s.spoolRefused(err) {
				continue
			}
			full, wait = s.cfg.Spool.Changed(), fullRetry
		}
		var tick <-chan time.Time
		if s.anythingInMemory() {
			s.spillIdle.Store(false) // the tick looks
			timer.Reset(wait)
			tick = timer.C
		}
		select {
		case <-ctx.Done():
		case <-s.spilWake:
		case <-full:
		case <-tick:
		}
	}
}

func (s *Shipper) kickSpill() { knock(s.spilWake) }

func (s *Shipper) anythingInMemory() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.order, func(l *lane) bool { return l.q != nil && max(l.next, l.spoolNext) < l.q.Next() })
}

// spillable picks what goes next: everything when all is set or durability is strict, else what is
// too old, and, when memory fills up, the oldest of all.
func (s *Shipper) spillable(all bool) []spillable {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = all || s.cfg.Durability == DurabilityStrict
	now := time.Now()
	type candidate struct {
		lane   *lane
		oldest int64
	}
	var waiting []candidate
	for _, l := range s.order {
		if l.q == nil {
			continue
		}
		from := max(l.next, l.spoolNext)
		if from >= l.q.Next() {
			continue
		}
		b, _, ok := l.q.Find(from)
		if !ok && !l.complete() {
			continue // a gap at the end: it waits for what follows it
		}
		waiting = append(waiting, candidate{l, b.Oldest})
	}
	slices.SortFunc(waiting, func(a, b candidate) int { return int(min(max(a.oldest-b.oldest, -1), 1)) })
	var group []spillable
	size := int64(0)
	full := s.queue.Fill() > spillFill
	for _, c := range waiting {
		old := now.Sub(time.UnixMicro(c.oldest)) >= spillAge
		if !all && !full && !old && !c.lane.orphan {
			continue
		}
		upTo := now.Add(-spillAge).UnixMicro()
		if all || full || c.lane.orphan {
			upTo = now.UnixMicro()
		}
		if one, n := s.spillOf(c.lane, upTo, spillGroup-size); n > 0 {
			c.lane.spilling = true
			group = append(group, one)
			size += n
		}
		if size >= spillGroup {
			break
		}
	}
	return group
}

// spillOf takes batches of l whose oldest byte was read before upTo, in order, up to about size bytes.
func (s *Shipper) spillOf(l *lane, upTo, size int64) (spillable, int64) {
	one := spillable{lane: l, next: max(l.next, l.spoolNext)}
	total := int64(0)
	for total < size {
		b, parts, ok := l.q.Find(one.next)
		if !ok {
			if end := l.q.Next(); l.complete() && one.next < end {
				one.holes = append(one.holes, hole{one.next, end, l.gapAt(one.next)})
				one.next, total = end, total+1
			}
			break
		}
		if b.Oldest > upTo && total > 0 {
			break
		}
		if b.First > one.next {
			one.holes = append(one.holes, hole{one.next, b.First, l.gapAt(one.next)})
		}
		if b.Damaged {
			one.holes = append(one.holes, hole{b.First, b.End(), protocol.GapDamaged})
		} else {
			st := stored{b.First, b.Count, b.Encoding, b.Decoded, parts}
			if len(one.batches) == 0 {
				one.oldest = b.Oldest
			}
			one.batches = append(one.batches, st)
			total += st.size()
		}
		one.next, total = b.End(), total+1
	}
	return one, total
}

// spill makes the group durable, and then takes it out of memory. Only one runs at a time.
func (s *Shipper) spill(ctx context.Context, group []spillable) error {
	err := s.store(ctx, group)
	if err == nil && s.spoolOut.Swap(false) {
		s.cfg.Logger.Info("spool takes batches again")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range group {
		l := one.lane
		l.spilling = false
		if err == nil {
			s.spilled(l, one)
		}
		s.cfg.Spool.Ack(l.key, l.next) // the server may have taken some of it meanwhile; a group that was refused may be there in part
		s.release(l)
		s.wake(l)
		s.settleEnd(l)
	}
	return err
}

func (s *Shipper) store(ctx context.Context, group []spillable) error {
	var batches []spool.Batch
	for _, one := range group {
		s.describe(one.lane)
		packed, err := s.pack(one)
		if err != nil {
			return err
		}
		batches = append(batches, packed...)
	}
	s.stamps.spillBegan.Store(time.Now().UnixNano())
	defer s.stamps.spillBegan.Store(0)
	return s.cfg.Spool.Append(ctx, batches...) //nolint:wrapcheck // the caller looks for the spool's own errors
}

// spilled takes note of what the spool has now.
func (s *Shipper) spilled(l *lane, one spillable) {
	if !l.replaying() && one.oldest > 0 {
		l.spooledSince = time.UnixMicro(one.oldest)
	}
	l.spoolNext = max(l.spoolNext, one.next)
	for _, h := range one.holes {
		s.addGap(l, span{first: h.first, next: h.next, reason: h.reason})
	}
}

// describe tells the spool whose batches these are.
func (s *Shipper) describe(l *lane) {
	m, err := json.Marshal(meta{l.ref.JobID, l.ref.Attempt, l.ref.LeaseToken})
	if err != nil {
		return // can't be: three plain fields
	}
	s.cfg.Spool.SetMeta(l.key, m)
}

// pack is a lane's batches as the spool gets them, in order, gaps included. With automatic
// compression what was made fast for the wire is made small for the disk.
func (s *Shipper) pack(one spillable) ([]spool.Batch, error) {
	w := <-s.sealers
	defer func() { s.sealers <- w }()
	out := make([]spool.Batch, 0, len(one.batches)+len(one.holes))
	for _, h := range one.holes {
		line := gapLine(h)
		out = append(out, spool.Batch{
			Attempt: one.lane.key, First: h.first, Count: h.next - h.first, Encoding: encIdentity, Decoded: int64(len(line)), Data: line,
		})
	}
	for _, b := range one.batches {
		data, encoding := b.joined(), b.encoding
		if s.cfg.Compression == CompressionAuto && encoding == encSnappy {
			if text, err := decode(data, encoding); err == nil {
				small, err := w.frame(nil, text, encZstd)
				if err != nil {
					return nil, err
				}
				data, encoding = small, encZstd
			}
		} else if len(b.parts) == 1 {
			data = slices.Clone(data) // it lies in memory that a later batch may be given
		}
		out = append(out, spool.Batch{Attempt: one.lane.key, First: b.first, Count: b.count, Encoding: encoding, Decoded: b.decoded, Data: data})
	}
	slices.SortFunc(out, func(a, b spool.Batch) int { return int(min(max(a.First-b.First, -1), 1)) })
	return out, nil
}

// spoolRefused does what the policy says about a full spool; true = try again at once.
func (s *Shipper) spoolRefused(err error) bool {
	if !s.spoolOut.Swap(true) {
		s.cfg.Logger.Warn("spool took no batches", zap.String("whenFull", s.cfg.WhenFull), zap.Error(err))
	}
	if !errors.Is(err, spool.ErrFull) {
		return false
	}
	switch s.cfg.WhenFull {
	case WhenFullDropOldest:
		if s.queue.Fill() < spillFill {
			return false // memory still has room: nothing must go yet
		}
		freed, err := s.cfg.Spool.DropOldest()
		if err != nil || freed == 0 {
			return false
		}
		s.cfg.Logger.Warn("oldest batches were dropped", zap.Int64("freed", freed))
		s.noteDropped()
		return true
	case WhenFullDropNewest:
		s.queue.Wake() // those who wait for room drop what they have read
	}
	return false
}

// noteDropped finds out which records the spool has given up.
func (s *Shipper) noteDropped() {
	infos := s.cfg.Spool.Attempts()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, info := range infos {
		if l := s.lanes[info.Attempt]; l != nil && info.First > l.next {
			s.addGap(l, span{first: l.next, next: min(info.First, l.spoolNext), reason: protocol.GapSpoolFull})
		}
	}
}

// mustDrop says that new output has nowhere to go and is to be dropped.
func (s *Shipper) mustDrop() bool {
	return s.cfg.WhenFull == WhenFullDropNewest && (s.cfg.Spool == nil || s.spoolOut.Load())
}

// dropForRoom drops what the policy says, to make room for what l reads; false = nothing was dropped.
func (s *Shipper) dropForRoom(l *Log) bool {
	switch {
	case s.mustDrop():
		s.dropNewest(l)
		return true
	case s.cfg.WhenFull == WhenFullDropOldest && s.cfg.Spool == nil:
		return s.dropOldest(l)
	}
	return false
}

// dropNewest gives numbers to what l has read, and keeps nothing of it.
func (s *Shipper) dropNewest(l *Log) {
	w := <-s.sealers
	defer func() { s.sealers <- w }()
	l.sealMu.Lock()
	defer l.sealMu.Unlock()
	l.sealWith(w, true) //nolint:errcheck // it needs no room
}

// dropOldest gives up l's oldest batch in memory, where there is no spool.
func (s *Shipper) dropOldest(log *Log) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[keyOf(log.ref)]
	if l == nil || l.flying {
		return false
	}
	b, _, ok := l.q.Find(l.next)
	if !ok {
		return false
	}
	s.addGap(l, span{first: max(b.First, l.next), next: b.End(), reason: protocol.GapSpoolFull})
	l.q.Release(b.End())
	s.wake(l)
	return true
}
