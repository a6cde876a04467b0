package redact

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// mark is what stands in a secret's place.
const mark = "[redacted]"

// window is how many bytes the filter looks at at once; no pattern is shorter.
const window = 4

// matcher finds patterns in a stream. It is immutable, so that streams share one.
//
// Four bytes at a time are looked up in a bit map that says whether they can belong to the front of a pattern. Where
// all patterns are longer than that, not every place must be looked at: with the windows at a pattern's first
// stride offsets in the map, one look-up every stride bytes meets each occurrence. Only where it hits are patterns compared.
type matcher struct {
	patterns [][]byte         // longest first, so that the first that fits is the longest
	starts   map[uint32][]int // first four bytes → patterns, longest first
	heads    bitmap           // first four bytes of patterns
	fronts   bitmap           // the four bytes at a pattern's first stride offsets
	stride   int
	longest  int
}

// bitmap is a set of 16-bit hashes: 8 KiB, which stay in the innermost cache.
type bitmap [1 << 10]uint64

func (b *bitmap) add(window uint32) {
	h := hash(window)
	b[h>>6] |= 1 << (h & 63)
}

func (b *bitmap) has(window uint32) bool {
	h := hash(window)
	return b[h>>6]&(1<<(h&63)) != 0
}

// hash spreads four bytes over 16 bits (Knuth's multiplicative hash).
func hash(v uint32) uint32 { return v * 2654435761 >> 16 }

func newMatcher(patterns [][]byte) *matcher {
	patterns = slices.Clone(patterns)
	slices.SortFunc(patterns, func(a, b []byte) int {
		if d := len(b) - len(a); d != 0 {
			return d
		}
		return bytes.Compare(a, b)
	})
	m := &matcher{patterns: slices.CompactFunc(patterns, bytes.Equal), starts: map[uint32][]int{}, stride: window}
	for _, p := range m.patterns {
		m.longest = max(m.longest, len(p))
		m.stride = min(m.stride, len(p)-window+1)
	}
	for i, p := range m.patterns {
		head := binary.LittleEndian.Uint32(p)
		m.starts[head] = append(m.starts[head], i)
		m.heads.add(head)
		for o := range m.stride {
			m.fronts.add(binary.LittleEndian.Uint32(p[o:]))
		}
	}
	return m
}

// find returns the first place in b, from on, at which a pattern stands (length > 0), or may stand once more
// bytes come (length 0, at < len(b)); at = len(b): neither.
func (m *matcher) find(b []byte, from int) (at, length int) {
	next := from // the first place that wasn't ruled out as a beginning
	for j := from + m.stride - 1; j+window <= len(b); j += m.stride {
		if !m.fronts.has(binary.LittleEndian.Uint32(b[j:])) {
			next = j + 1
			continue
		}
		for ; next <= j; next++ {
			if found, open := m.at(b[next:]); open || found > 0 {
				return next, found
			}
		}
	}
	for ; next < len(b); next++ {
		if found, open := m.at(b[next:]); open || found > 0 {
			return next, found
		}
	}
	return len(b), 0
}

// at looks for patterns at the very beginning of b: the length of the longest, or whether a longer one is still
// possible, which settles that nothing that begins later can win.
func (m *matcher) at(b []byte) (found int, open bool) {
	if len(b) < window {
		return 0, slices.ContainsFunc(m.patterns, func(p []byte) bool { return bytes.HasPrefix(p, b) })
	}
	head := binary.LittleEndian.Uint32(b)
	if !m.heads.has(head) {
		return 0, false
	}
	for _, i := range m.starts[head] {
		p := m.patterns[i]
		switch {
		case len(p) > len(b) && bytes.HasPrefix(p, b):
			return 0, true
		case bytes.HasPrefix(b, p):
			return len(p), false
		}
	}
	return 0, false
}

// final is find for a stream that has ended: what is open stays as it is, but a shorter pattern may stand there.
func (m *matcher) final(b []byte, from int) (at, length int) {
	for i := from; i+window <= len(b); i++ {
		for _, k := range m.starts[binary.LittleEndian.Uint32(b[i:])] {
			if p := m.patterns[k]; bytes.HasPrefix(b[i:], p) {
				return i, len(p)
			}
		}
	}
	return len(b), 0
}
