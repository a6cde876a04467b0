package spool

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
)

// ref locates one batch in an epoch's value log.
type ref struct {
	first, next int64
	valueAt     int64
	valueLen    int64
	decoded     int64
	stored      int64 // µs
	lost        bool  // known to have been there, and unreadable
}

// span is what an epoch holds of one attempt, as a summary that costs the same for any number of batches.
type span struct {
	first, next int64 // the outer bounds
	batches     int64
	bytes       int64
	decoded     int64
	oldest      int64 // µs
	meta        []byte
}

// index is an epoch's table of contents.
type index struct {
	spans map[string]*span
	refs  map[string][]ref // sorted by first; nil until loaded
}

func newIndex() *index {
	return &index{spans: map[string]*span{}, refs: map[string][]ref{}}
}

func (ix *index) setMeta(attempt string, meta []byte) {
	ix.span(attempt).meta = meta
}

func (ix *index) span(attempt string) *span {
	sp := ix.spans[attempt]
	if sp == nil {
		sp = &span{first: -1}
		ix.spans[attempt] = sp
	}
	return sp
}

// add takes refs in any order; sort follows, once, when they didn't come in order.
func (ix *index) add(attempt string, r ref) {
	ix.refs[attempt] = append(ix.refs[attempt], r)
	sp := ix.span(attempt)
	if sp.first < 0 || r.first < sp.first {
		sp.first = r.first
	}
	sp.next = max(sp.next, r.next)
	sp.batches++
	sp.bytes += r.valueLen
	sp.decoded += r.decoded
	if r.stored != 0 && (sp.oldest == 0 || r.stored < sp.oldest) {
		sp.oldest = r.stored
	}
}

// drop takes the ref that was added last back.
func (ix *index) drop(attempt string) {
	refs := ix.refs[attempt]
	meta := ix.span(attempt).meta
	delete(ix.refs, attempt)
	delete(ix.spans, attempt)
	ix.setMeta(attempt, meta)
	for _, r := range refs[:len(refs)-1] {
		ix.add(attempt, r)
	}
}

func (ix *index) sort() {
	for attempt, refs := range ix.refs {
		slices.SortStableFunc(refs, func(a, b ref) int {
			return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.next, b.next))
		})
		ix.refs[attempt] = refs
	}
	for attempt, sp := range ix.spans {
		if sp.first < 0 { // a meta without batches: the transaction was cut after it
			delete(ix.spans, attempt)
		}
	}
}

// find returns the readable batch that covers n. Batches of one attempt overlap only where one was
// stored twice, so that looking back a few is enough.
func (ix *index) find(attempt string, n int64) (ref, bool) {
	refs := ix.refs[attempt]
	i, _ := slices.BinarySearchFunc(refs, n, func(r ref, n int64) int {
		if r.first <= n {
			return -1
		}
		return 1
	})
	const overlaps = 8
	for back := i - 1; back >= 0 && back >= i-overlaps; back-- {
		if r := refs[back]; !r.lost && r.first <= n && n < r.next {
			return r, true
		}
	}
	return ref{}, false
}

// after returns the start of the first readable batch above n.
func (ix *index) after(attempt string, n int64) (int64, bool) {
	refs := ix.refs[attempt]
	i, _ := slices.BinarySearchFunc(refs, n, func(r ref, n int64) int {
		if r.first <= n {
			return -1
		}
		return 1
	})
	for ; i < len(refs); i++ {
		if !refs[i].lost {
			return refs[i].first, true
		}
	}
	return 0, false
}

// covers says whether a batch that covers n was there, readable or not.
func (ix *index) covers(attempt string, n int64) bool {
	for _, r := range ix.refs[attempt] {
		if r.first <= n && n < r.next {
			return true
		}
	}
	return false
}

// lose marks the batch that starts where r does as unreadable.
func (ix *index) lose(attempt string, r ref) {
	for i := range ix.refs[attempt] {
		if q := &ix.refs[attempt][i]; q.first == r.first && q.next == r.next && q.valueAt == r.valueAt {
			q.lost = true
		}
	}
}

// The INDEX file of a sealed epoch, integers little-endian:
//
//	0  "AGSPIDX1"
//	8  length of the summary  12 its CRC-32C
//	16 length of the entries  20 their CRC-32C
//	24 CRC-32C of the 24 bytes before
//	28 summary: uvarint number of attempts, and for each: uvarint length and attempt id, uvarint
//	   length and meta, then as uvarints first, next, batches, bytes, decoded, oldest (µs)
//	   entries, 48 bytes each: attempt (its place in the summary) u32, value length u32,
//	   first, next, position of the value, decoded, stored (µs), each u64
//
// A start reads the summary only. The entries are what finds the rest of an epoch when a length in
// its value log is damaged.
const (
	indexMagic  = "AGSPIDX1"
	indexHeader = 28
	indexEntry  = 48
	// maxIndex bounds what a damaged length may allocate: an epoch holds some ten thousand batches.
	maxIndex = 64 << 20
)

func (ix *index) encode() []byte {
	attempts := make([]string, 0, len(ix.spans))
	for a := range ix.spans {
		attempts = append(attempts, a)
	}
	slices.Sort(attempts)
	var sum, ents []byte
	sum = binary.AppendUvarint(sum, uint64(len(attempts)))
	for i, a := range attempts {
		sp := ix.spans[a]
		sum = binary.AppendUvarint(sum, uint64(len(a)))
		sum = append(sum, a...)
		sum = binary.AppendUvarint(sum, uint64(len(sp.meta)))
		sum = append(sum, sp.meta...)
		for _, v := range []int64{sp.first, sp.next, sp.batches, sp.bytes, sp.decoded, sp.oldest} {
			sum = binary.AppendUvarint(sum, uint64(v))
		}
		for _, r := range ix.refs[a] {
			ents = binary.LittleEndian.AppendUint32(ents, uint32(i))
			ents = binary.LittleEndian.AppendUint32(ents, uint32(r.valueLen))
			for _, v := range []int64{r.first, r.next, r.valueAt, r.decoded, r.stored} {
				ents = binary.LittleEndian.AppendUint64(ents, uint64(v))
			}
		}
	}
	out := make([]byte, 0, indexHeader+len(sum)+len(ents))
	out = append(out, indexMagic...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(sum)))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(sum, castagnoli))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(ents)))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(ents, castagnoli))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
	return append(append(out, sum...), ents...)
}

// readIndex reads the summary, and the entries too if asked to. size is the file's.
func readIndex(r io.ReaderAt, size int64, entries bool) (*index, error) {
	var head [indexHeader]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if !bytes.Equal(head[:8], []byte(indexMagic)) || crc32.Checksum(head[:24], castagnoli) != binary.LittleEndian.Uint32(head[24:]) {
		return nil, errors.New("header is damaged")
	}
	sumLen, entLen := int64(binary.LittleEndian.Uint32(head[8:])), int64(binary.LittleEndian.Uint32(head[16:]))
	if indexHeader+sumLen+entLen != size || size > maxIndex {
		return nil, fmt.Errorf("%d bytes, not %d", size, indexHeader+sumLen+entLen)
	}
	part := func(at, n int64, want uint32) ([]byte, error) {
		b := make([]byte, n)
		if _, err := r.ReadAt(b, at); err != nil && (n > 0 || !errors.Is(err, io.EOF)) {
			return nil, err
		}
		if sum := crc32.Checksum(b, castagnoli); sum != want {
			return nil, fmt.Errorf("checksum at %d is %08x, not %08x", at, sum, want)
		}
		return b, nil
	}
	sum, err := part(indexHeader, sumLen, binary.LittleEndian.Uint32(head[12:]))
	if err != nil {
		return nil, err
	}
	ix := &index{spans: map[string]*span{}}
	attempts, err := ix.parseSummary(sum)
	if err != nil || !entries {
		return ix, err
	}
	ents, err := part(indexHeader+sumLen, entLen, binary.LittleEndian.Uint32(head[20:]))
	if err != nil {
		return nil, err
	}
	ix.refs = map[string][]ref{}
	return ix, ix.parseEntries(ents, attempts)
}

func (ix *index) parseSummary(b []byte) ([]string, error) {
	bad := errors.New("summary doesn't parse")
	number := func() int64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 {
			b = nil
			return -1
		}
		b = b[n:]
		return int64(v)
	}
	text := func() []byte {
		n := number()
		if n < 0 || n > int64(len(b)) {
			b = nil
			return nil
		}
		t := b[:n]
		b = b[n:]
		return t
	}
	n := number()
	if n < 0 || n > int64(len(b)) {
		return nil, bad
	}
	attempts := make([]string, 0, n)
	for range n {
		attempt := string(text())
		sp := &span{meta: bytes.Clone(text())}
		for _, v := range []*int64{&sp.first, &sp.next, &sp.batches, &sp.bytes, &sp.decoded, &sp.oldest} {
			*v = number()
		}
		if attempt == "" || sp.oldest < 0 {
			return nil, bad
		}
		attempts = append(attempts, attempt)
		ix.spans[attempt] = sp
	}
	return attempts, nil
}

func (ix *index) parseEntries(b []byte, attempts []string) error {
	if len(b)%indexEntry != 0 {
		return errors.New("entries don't parse")
	}
	for ; len(b) > 0; b = b[indexEntry:] {
		i := int(binary.LittleEndian.Uint32(b))
		if i >= len(attempts) {
			return errors.New("entries don't parse")
		}
		at := func(o int) int64 { return int64(binary.LittleEndian.Uint64(b[o:])) }
		ix.refs[attempts[i]] = append(ix.refs[attempts[i]], ref{
			valueLen: int64(binary.LittleEndian.Uint32(b[4:])),
			first:    at(8), next: at(16), valueAt: at(24), decoded: at(32), stored: at(40),
			lost: binary.LittleEndian.Uint32(b[4:]) < valueHeader,
		})
	}
	return nil
}
