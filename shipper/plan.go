package shipper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"agentd/agent/protocol"
	"agentd/spool"
)

// shipment is one body, and what it was made of.
type shipment struct {
	body    protocol.LogBody
	end     int64  // the number after the last
	size    int64  // bytes as sent
	gap     bool   // it is a gap record of ours
	one     bool   // it covers one record only, or cannot be made smaller
	batch   stored // the first batch of it
	batches int
}

// stored is a sealed batch, wherever it is.
type stored struct {
	first, count int64
	encoding     uint8
	decoded      int64
	parts        [][]byte
}

func (b stored) end() int64 { return b.first + b.count }

func (b stored) size() (n int64) {
	for _, p := range b.parts {
		n += int64(len(p))
	}
	return n
}

func (b stored) joined() []byte {
	if len(b.parts) == 1 {
		return b.parts[0]
	}
	return bytes.Join(b.parts, nil)
}

// hole is a stretch of numbers of which nothing is left.
type hole struct {
	first, next int64
	reason      string
}

// view is what plan needs of a lane, taken at one moment.
type view struct {
	spoolNext, end, shippable, limit, maxRecords int64
	alone, complete, final                       bool
	usable                                       func(uint8) bool
	other                                        uint8
	rebuild                                      bool
}

func (s *Shipper) look(l *lane) view {
	s.mu.Lock()
	defer s.mu.Unlock()
	offered := [8]bool{}
	for e := range offered {
		offered[e] = s.link.usable(uint8(e))
	}
	complete := l.complete() // before end, which can't move any more then
	return view{
		spoolNext: l.spoolNext, complete: complete, end: max(s.end(l), l.next), shippable: s.shippable(l), limit: s.link.limit(time.Now()),
		maxRecords: l.maxRecords, alone: l.alone, final: l.final && !l.finalSaid,
		usable: func(e uint8) bool { return int(e) < len(offered) && offered[e] }, other: s.link.other(), rebuild: l.corrupt >= 2,
	}
}

// plan makes the next body of l; nil = there is nothing to ship. Only the one request of l runs it,
// and only that moves l.next.
func (s *Shipper) plan(l *lane) (*shipment, error) {
	s.mu.Lock()
	n := l.next
	s.mu.Unlock()
	v := s.look(l)
	if n >= v.shippable {
		if v.complete && v.final && n >= v.end {
			return &shipment{body: protocol.LogBody{First: n, Final: true, Encoding: "identity"}, end: n}, nil
		}
		return nil, nil //nolint:nilnil // nothing to ship is no error
	}
	if g := s.deadAt(l, n); g != nil {
		return s.gapShipment(l, v, *g), nil
	}
	b, h, err := s.fetch(l, n, v)
	if err != nil {
		return nil, err
	}
	if h != nil {
		s.mu.Lock()
		s.addGap(l, span{first: h.first, next: h.next, reason: h.reason})
		s.mu.Unlock()
		return s.gapShipment(l, v, *h), nil
	}
	if v.maxRecords > 0 || b.size() > v.limit || !v.usable(b.encoding) || v.rebuild {
		return s.slice(l, v, b, n)
	}
	return s.whole(l, v, b)
}

// deadAt is the stretch at n that was dead-lettered, if one was: a gap goes in its place.
func (s *Shipper) deadAt(l *lane, n int64) *hole {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range l.gaps {
		if g.dead && g.first <= n && n < g.next {
			return &hole{n, g.next, g.reason}
		}
	}
	return nil
}

func (s *Shipper) gapShipment(l *lane, v view, h hole) *shipment {
	line := gapLine(h)
	return &shipment{
		body: protocol.LogBody{
			First: h.first, Count: h.next - h.first, Encoding: "identity", Frames: [][]byte{line}, Final: v.complete && h.next >= v.end,
		},
		end: h.next, size: int64(len(line)), gap: true, one: true,
	}
}

func gapLine(h hole) []byte {
	return protocol.AppendRecord(nil, protocol.Record{
		Time: time.Now().UnixMicro(), Stream: protocol.Remark, Gap: h.next - h.first, Reason: h.reason,
	})
}

// fetch finds the batch that covers n: in the spool first, then in memory. Or the hole that does.
func (s *Shipper) fetch(l *lane, n int64, v view) (stored, *hole, error) {
	if n < v.spoolNext {
		return s.fetchSpooled(l, n, v)
	}
	s.mu.Lock()
	q := l.q
	s.mu.Unlock()
	if q == nil {
		return stored{}, &hole{n, v.end, protocol.GapDamaged}, nil // can't be: everything below end is somewhere
	}
	b, parts, ok := q.Find(n)
	switch {
	case !ok:
		return stored{}, &hole{n, v.end, s.why(l, n)}, nil
	case b.First > n:
		return stored{}, &hole{n, b.First, s.why(l, n)}, nil
	case b.Damaged:
		return stored{}, &hole{n, b.End(), protocol.GapDamaged}, nil
	}
	return stored{b.First, b.Count, b.Encoding, b.Decoded, parts}, nil, nil
}

func (s *Shipper) why(l *lane, n int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.gapAt(n)
}

func (s *Shipper) fetchSpooled(l *lane, n int64, v view) (stored, *hole, error) {
	b, err := s.cfg.Spool.Read(l.key, n)
	lost, isHole := errors.AsType[*spool.HoleError](err)
	switch {
	case isHole:
		return stored{}, &hole{n, max(lost.Next, n+1), gapReason(lost.Reason)}, nil
	case errors.Is(err, io.EOF):
		return stored{}, &hole{n, v.spoolNext, protocol.GapDamaged}, nil
	case err != nil:
		return stored{}, nil, fmt.Errorf("shipper: read spool: %w", err)
	case b.First > n:
		return stored{}, &hole{n, b.First, protocol.GapDamaged}, nil
	}
	return stored{b.First, b.Count, b.Encoding, b.Decoded, [][]byte{b.Data}}, nil, nil
}

// gapReason is how the log calls what the spool says.
func gapReason(reason string) string {
	switch reason {
	case "", spool.ReasonCorrupt, spool.ReasonMissing:
		return protocol.GapDamaged
	}
	return reason
}

// whole ships b as it was sealed, and as many of the batches behind it as fit.
func (s *Shipper) whole(l *lane, v view, b stored) (*shipment, error) {
	sh := &shipment{batch: b, batches: 1, end: b.end(), size: b.size()}
	sh.body = protocol.LogBody{First: b.first, Count: b.count, Encoding: EncodingName(b.encoding), Frames: b.parts}
	decoded := b.decoded
	limit := v.limit
	if b.first >= v.spoolNext {
		limit = min(limit, s.cfg.Memory/memoryShare)
	}
	for !v.alone && sh.end < v.shippable {
		if sh.end < v.spoolNext != (b.first < v.spoolNext) || s.deadAt(l, sh.end) != nil {
			break // one body is of one place: memory is pinned for it, the spool isn't
		}
		m, h, err := s.fetch(l, sh.end, v)
		if err != nil || h != nil || m.first != sh.end || m.encoding != b.encoding ||
			sh.size+m.size() > limit || decoded+m.decoded > decodedMax {
			break // the next body's matter
		}
		sh.body.Frames = append(sh.body.Frames, m.parts...)
		sh.body.Count += m.count
		sh.end, sh.size, decoded = m.end(), sh.size+m.size(), decoded+m.decoded
		sh.batches++
	}
	sh.body.Final = v.complete && sh.end >= v.end
	sh.one = sh.body.Count == 1
	return sh, nil
}

// slice ships a part of b, from n on, freshly compressed: when a body has to be smaller than a
// sealed batch, or in another encoding.
func (s *Shipper) slice(l *lane, v view, b stored, n int64) (*shipment, error) {
	text, err := decode(b.joined(), b.encoding)
	if err != nil {
		// Its CRC holds, so it was sealed like this: nobody will ever read it.
		s.mu.Lock()
		s.addGap(l, span{first: n, next: b.end(), reason: protocol.GapDamaged})
		s.mu.Unlock()
		return s.gapShipment(l, v, hole{n, b.end(), protocol.GapDamaged}), nil
	}
	encoding := b.encoding
	if !v.usable(encoding) || v.rebuild {
		encoding = v.other
	}
	records := b.count
	if v.maxRecords > 0 {
		records = min(records, v.maxRecords)
	}
	w := <-s.sealers
	defer func() { s.sealers <- w }()
	for {
		part, first, count := cutRecords(text, b.first, n, records)
		packed, err := w.frame(nil, part, encoding)
		if err != nil {
			return nil, err
		}
		if int64(len(packed)) > v.limit && count > 1 && records > 1 {
			records = max(1, min(records/2, count/2))
			continue
		}
		sh := &shipment{batch: b, batches: 1, end: first + count, size: int64(len(packed)), one: records == 1 || count == 1}
		sh.body = protocol.LogBody{
			First: first, Count: count, Encoding: EncodingName(encoding), Frames: [][]byte{packed}, Final: v.complete && sh.end >= v.end,
		}
		return sh, nil
	}
}

// cutRecords is the stretch of text, a batch that begins with number first, that covers n and at
// most records numbers from there on; one record, if that alone covers more.
func cutRecords(text []byte, first, n, records int64) (part []byte, from, count int64) {
	for line := range bytes.Lines(text) {
		k := recordNumbers(line)
		if first+k <= n {
			text, first = text[len(line):], first+k
			continue
		}
		break
	}
	from = first
	size := 0
	for line := range bytes.Lines(text) {
		k := recordNumbers(line)
		if count > 0 && count+k > records {
			break
		}
		count += k
		size += len(line)
	}
	return text[:size], from, count
}

// recordNumbers is how many numbers a line of NDJSON that we wrote covers.
func recordNumbers(line []byte) int64 {
	if !bytes.Contains(line[:min(len(line), 64)], []byte(`"gap":`)) {
		return 1
	}
	r, err := protocol.ParseRecord(line)
	if err != nil {
		return 1
	}
	return r.Numbers()
}
