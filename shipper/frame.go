package shipper

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"unicode/utf8"

	"agentd/agent/protocol"
	"agentd/shipper/internal/queue"
)

// The streams' numbers in the queue.
const (
	streamOut = iota
	streamErr
	streamRemark
)

var streamNames = [queue.Streams]protocol.Stream{protocol.Stdout, protocol.Stderr, protocol.Remark}

// framer cuts the bytes of an attempt's streams into records and writes them as NDJSON. It is
// deterministic: the same bytes, cut at the same flushes, make the same records with the same
// numbers. Record numbers that left for the server are fixed by the batch they are in.
type framer struct {
	maxLine int
	out     []byte
	count   int64
	oldest  int64 // time of the oldest byte in out; 0 = none

	streams [queue.Streams]framed

	prefixTime   int64
	prefixStream int
	prefix       []byte
}

// framed is one stream's place in the work.
type framed struct {
	runs []queue.Run
	at   int    // the run we are in
	off  int    // how far in it
	pos  int64  // the stream position of what is looked at next
	pend []byte // a line's beginning, without its end so far: a part of a run, or of join
	time int64  // when pend's first byte was read
	join []byte // where a line is put together that lies in several runs
	mid  bool   // the last record has part set
	skip bool   // bytes are lost: what comes up to the next newline belongs to a line without a beginning
	end  bool   // no more bytes will come
	cut  bool   // ship what there is of an unfinished line
}

// used is the position up to which records were made.
func (s *framed) used() int64 { return s.pos - int64(len(s.pend)) }

// begin takes over what is in a's streams.
func (f *framer) begin(a *queue.Attempt, end, cut [queue.Streams]bool) {
	f.maxLine = a.MaxLine
	parts := a.Parts()
	for i := range f.streams {
		s := &f.streams[i]
		s.runs = a.Raw(i).Runs(s.runs[:0])
		s.at, s.off, s.pend, s.join, s.skip = 0, 0, nil, s.join[:0], false
		s.pos = a.Raw(i).Used()
		s.mid, s.end, s.cut = parts&(1<<i) != 0, end[i], cut[i]
	}
	f.reset()
}

// load takes over what a queue file holds of streams that nobody reads any more.
func (f *framer) load(maxLine int, runs [queue.Streams][]queue.Run, used [queue.Streams]int64, parts uint8) {
	f.maxLine = maxLine
	for i := range f.streams {
		f.streams[i] = framed{runs: runs[i], pos: used[i], mid: parts&(1<<i) != 0, end: true}
	}
}

// reset begins the next batch.
func (f *framer) reset() { f.out, f.count, f.oldest = f.out[:0], 0, 0 }

func (f *framer) used() (u [queue.Streams]int64, parts uint8) {
	for i := range f.streams {
		u[i] = f.streams[i].used()
		if f.streams[i].mid {
			parts |= 1 << i
		}
	}
	return u, parts
}

// next makes records until there are maxBytes of them; false = everything that can be made now was made.
func (f *framer) next(maxBytes int) bool {
	for {
		which := -1
		for i := range f.streams { // whichever stream's bytes were read first
			s := &f.streams[i]
			if s.at < len(s.runs) && (which < 0 || s.runs[s.at].Time < f.streams[which].runs[f.streams[which].at].Time) {
				which = i
			}
		}
		if which < 0 {
			break
		}
		if f.run(which, maxBytes) {
			return true
		}
	}
	for i := range f.streams {
		if len(f.out) >= maxBytes {
			return true
		}
		f.finish(i)
	}
	return false
}

// run makes records of a stream's present run; true = the batch is full.
func (f *framer) run(which, maxBytes int) bool {
	s := &f.streams[which]
	r := s.runs[s.at]
	if r.Lost {
		f.lost(s, r)
		return false
	}
	if s.off == 0 && r.Pos < s.pos {
		s.off = int(s.pos - r.Pos) // an earlier batch used up its beginning
	} else if s.off == 0 {
		s.pos = r.Pos
	}
	for s.off < len(r.Data) {
		if len(f.out) >= maxBytes {
			return true
		}
		rest := r.Data[s.off:]
		n := bytes.IndexByte(rest, '\n')
		if n < 0 {
			s.off, s.pos = len(r.Data), s.pos+int64(len(rest))
			if !s.skip {
				f.grow(s, rest, r.Time)
				f.pieces(which, s, r.Time)
			}
			break
		}
		s.off, s.pos = s.off+n+1, s.pos+int64(n)+1
		if s.skip {
			s.skip = false
			continue
		}
		if len(s.pend) == 0 && n <= f.maxLine {
			f.record(which, r.Time, rest[:n], suffixLine) // the usual case: the line lies in one piece
		} else {
			f.grow(s, rest[:n], r.Time)
			f.pieces(which, s, r.Time)
			f.record(which, r.Time, s.pend, suffixLine)
			f.noteAge(s.time)
			s.pend = nil
		}
		s.mid = false
	}
	s.at, s.off = s.at+1, 0
	return false
}

// grow adds more to the unfinished line.
func (f *framer) grow(s *framed, more []byte, now int64) {
	switch {
	case len(s.pend) == 0:
		s.pend, s.time = more, now
	default:
		if len(s.join) > 0 && &s.join[len(s.join)-1] == &s.pend[len(s.pend)-1] {
			if len(s.join) > 2*f.maxLine && len(s.join) > 2*len(s.pend) {
				s.join = append(s.join[:0], s.pend...) // a line without end must not pile up here
			}
			s.join = append(s.join, more...) // it is being joined already
			s.pend = s.join[len(s.join)-len(s.pend)-len(more):]
		} else {
			s.join = append(append(s.join[:0], s.pend...), more...)
			s.pend = s.join
		}
	}
}

// pieces cuts off what is more than a line may have. Exactly as much as it may have is no piece:
// the newline may come next.
func (f *framer) pieces(which int, s *framed, now int64) {
	for len(s.pend) > f.maxLine {
		n := wholeRunes(s.pend[:f.maxLine])
		f.record(which, now, s.pend[:n], suffixPart)
		f.noteAge(s.time)
		s.pend, s.mid = s.pend[n:], true
	}
}

// wholeRunes is how much of p ends with a whole rune, so that text cut in pieces stays text.
// What isn't UTF-8 is cut where p ends.
func wholeRunes(p []byte) int {
	for i := len(p) - 1; i >= 0 && i > len(p)-utf8.UTFMax; i-- {
		if utf8.RuneStart(p[i]) {
			if i > 0 && !utf8.FullRune(p[i:]) {
				return i
			}
			break
		}
	}
	return len(p)
}

// finish ships what is left of an unfinished line, if its stream has ended or it has waited long enough.
func (f *framer) finish(which int) {
	s := &f.streams[which]
	switch {
	case s.end && (len(s.pend) > 0 || s.mid):
		f.record(which, f.timeOf(s), s.pend, suffixEOF)
		f.noteAge(s.time)
		s.pend, s.mid = nil, false
	case s.cut && !s.end && len(s.pend) > 0:
		if !utf8.FullRune(s.pend) {
			return // the beginning of a rune says nothing to anybody
		}
		n := wholeRunes(s.pend)
		f.record(which, f.timeOf(s), s.pend[:n], suffixPart)
		f.noteAge(s.time)
		s.pend, s.mid = s.pend[n:], true
	}
}

// timeOf is the time of an unfinished line, or, for the empty end of one, of its stream's last run.
func (f *framer) timeOf(s *framed) int64 {
	if len(s.pend) > 0 || len(s.runs) == 0 {
		return s.time
	}
	return s.runs[len(s.runs)-1].Time
}

// lost puts a gap where bytes are missing. The unfinished line before them, and the rest of the line
// after them, belong to it: half a line would be a wrong one. How many lines it were nobody knows;
// the gap says one.
func (f *framer) lost(s *framed, r queue.Run) {
	s.pend, s.mid, s.skip = nil, false, true
	s.pos = r.Pos + 1
	if s.at+1 < len(s.runs) {
		s.pos = max(s.pos, s.runs[s.at+1].Pos)
	}
	f.out = protocol.AppendRecord(f.out, protocol.Record{Gap: 1, Reason: protocol.GapDamaged, Stream: protocol.Remark, Time: r.Time})
	f.count++
	s.at, s.off = s.at+1, 0
}

// noteAge keeps the oldest time of the batch, which is when the clock of its spilling started.
func (f *framer) noteAge(t int64) {
	if t > 0 && (f.oldest == 0 || t < f.oldest) {
		f.oldest = t
	}
}

// The ends of a record whose content stands in m.
const (
	suffixLine = "\"}\n"
	suffixPart = "\",\"part\":true}\n"
	suffixEOF  = "\",\"eof\":true}\n"
)

// record writes one record. It is the hot path: no allocation, and one look at eight bytes at a time.
func (f *framer) record(which int, now int64, line []byte, suffix string) {
	if now != f.prefixTime || which != f.prefixStream || len(f.prefix) == 0 {
		f.newPrefix(which, now)
	}
	f.noteAge(now)
	f.count++
	plain := plainBytes(line)
	if plain == len(line) {
		f.out = append(append(append(f.out, f.prefix...), line...), suffix...)
		return
	}
	if !utf8.Valid(line[plain:]) {
		f.out = append(f.out, f.prefix[:len(f.prefix)-len(`m":"`)]...)
		f.out = append(f.out, `b":"`...)
		f.out = base64.StdEncoding.AppendEncode(f.out, line)
		f.out = append(f.out, suffix...)
		return
	}
	f.out = append(f.out, f.prefix...)
	f.out = appendEscaped(f.out, line, plain)
	f.out = append(f.out, suffix...)
}

func (f *framer) newPrefix(which int, now int64) {
	p := append(f.prefix[:0], `{"ts":`...)
	p = strconv.AppendInt(p, now, 10)
	p = append(p, `,"s":"`...)
	p = append(p, streamNames[which]...)
	f.prefix = append(p, `","m":"`...)
	f.prefixTime, f.prefixStream = now, which
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// odd has the high bit of the first byte set that isn't plain ASCII without a meaning in JSON
// strings (below 0x20, a quote, a backslash, 0x80 and above). Higher bytes may be wrong: the
// subtractions borrow upwards only.
func odd(w uint64) uint64 {
	return ((w - 0x20*ones) | ((w ^ 0x22*ones) - ones) | ((w ^ 0x5c*ones) - ones) | w) & highs
}

// plainBytes is how many bytes at the beginning of p need no escaping.
func plainBytes(p []byte) int {
	i := 0
	for ; i+32 <= len(p); i += 32 {
		q := p[i : i+32 : i+32]
		if odd(binary.LittleEndian.Uint64(q))|odd(binary.LittleEndian.Uint64(q[8:]))|
			odd(binary.LittleEndian.Uint64(q[16:]))|odd(binary.LittleEndian.Uint64(q[24:])) != 0 {
			break
		}
	}
	for ; i+8 <= len(p); i += 8 {
		if odd(binary.LittleEndian.Uint64(p[i:])) != 0 {
			break
		}
	}
	for ; i < len(p); i++ {
		if c := p[i]; c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
			return i
		}
	}
	return i
}

// appendEscaped writes p, valid UTF-8 whose first plain bytes need no escaping, as the inside of a JSON string.
func appendEscaped(dst, p []byte, plain int) []byte {
	const hex = "0123456789abcdef"
	for {
		dst = append(dst, p[:plain]...)
		p = p[plain:]
		if len(p) == 0 {
			return dst
		}
		switch c := p[0]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
			p = p[1:]
		case c == '\t':
			dst = append(dst, '\\', 't')
			p = p[1:]
		case c == '\r':
			dst = append(dst, '\\', 'r')
			p = p[1:]
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			p = p[1:]
		default: // not ASCII: as it is, up to where ASCII goes on
			n := 1
			for n < len(p) && p[n] >= 0x80 {
				n++
			}
			dst = append(dst, p[:n]...)
			p = p[n:]
		}
		plain = plainBytes(p)
	}
}
