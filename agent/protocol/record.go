package protocol

import (
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"
)

// AppendRecord appends r as one line of a log body, newline included.
func AppendRecord(dst []byte, r Record) []byte {
	if r.Gap > 0 {
		return appendGap(dst, r)
	}
	if r.Bytes != nil {
		return AppendLine(dst, r.Time, r.Stream, r.Bytes, r.Part, r.EOF)
	}
	return appendLine(dst, r.Time, r.Stream, r.Text, r.Part, r.EOF)
}

// AppendLine appends a record of line, newline included: as text where it is valid UTF-8, as
// base64 where it is not. ts is in microseconds since the epoch. line is not kept. It is the
// hot path of shipping: no allocation but for dst, and about the speed of a copy.
func AppendLine(dst []byte, ts int64, stream Stream, line []byte, part, eof bool) []byte {
	return appendLine(dst, ts, stream, line, part, eof)
}

func appendLine[T string | []byte](dst []byte, ts int64, stream Stream, line T, part, eof bool) []byte {
	dst = append(dst, `{"ts":`...)
	dst = strconv.AppendInt(dst, ts, 10)
	dst = append(dst, `,"s":"`...)
	dst = append(dst, stream...)
	dst = append(dst, `","m":"`...)
	text := len(dst)
	dst, ok := appendText(dst, line)
	if !ok {
		dst[text-4] = 'b'
		dst = base64.StdEncoding.AppendEncode(dst[:text], []byte(line))
	}
	dst = append(dst, '"')
	if part {
		dst = append(dst, `,"part":true`...)
	}
	if eof {
		dst = append(dst, `,"eof":true`...)
	}
	return append(dst, "}\n"...)
}

func appendGap(dst []byte, r Record) []byte {
	dst = append(dst, '{')
	if r.Time != 0 || r.Stream != "" {
		dst = append(dst, `"ts":`...)
		dst = strconv.AppendInt(dst, r.Time, 10)
		dst = append(dst, `,"s":"`...)
		dst = append(dst, r.Stream...)
		dst = append(dst, `",`...)
	}
	dst = append(dst, `"gap":`...)
	dst = strconv.AppendInt(dst, r.Gap, 10)
	if r.Reason != "" {
		dst = append(dst, `,"reason":"`...)
		text := len(dst)
		var ok bool
		if dst, ok = appendText(dst, r.Reason); !ok {
			dst = append(dst[:text], "unknown"...) // ours are ASCII
		}
		dst = append(dst, '"')
	}
	return append(dst, "}\n"...)
}

// appendText appends s as the inside of a JSON string; false, with dst in any state past its
// length, where s isn't valid UTF-8.
func appendText[T string | []byte](dst []byte, s T) ([]byte, bool) {
	// Most lines have nothing to escape: one scan, one copy.
	i := special(s, false)
	dst = append(dst, s[:i]...)
	if i == len(s) {
		return dst, true
	}
	// The others (JSON, paths, quotes) have a lot: word by word, copying each before it is known
	// how much of it counts. From the first byte above ASCII on, the text is checked once.
	s = s[i:]
	utf := uint64(0)
	for len(s) >= 8 {
		if cap(dst)-len(dst) < 8+6 { // a word, or what one byte of it escapes to
			dst = slices.Grow(dst, len(s)+len(s)/4+16)
		}
		w := load(s)
		binary.LittleEndian.PutUint64(dst[len(dst):len(dst)+8], w)
		hit := hits(w, utf)
		if hit == 0 {
			dst, s = dst[:len(dst)+8], s[8:]
			continue
		}
		i := bits.TrailingZeros64(hit) / 8
		dst, s = dst[:len(dst)+i], s[i:]
		if s[0] < utf8.RuneSelf {
			dst, s = appendEscape(dst, s[0]), s[1:]
			continue
		}
		if !valid(s) {
			return dst, false
		}
		utf = highs
	}
	for i := range len(s) {
		switch b := s[i]; {
		case b < 0x20 || b == '"' || b == '\\':
			dst = appendEscape(dst, b)
		case b >= utf8.RuneSelf && utf == 0 && !valid(s[i:]):
			return dst, false
		default:
			if b >= utf8.RuneSelf {
				utf = highs
			}
			dst = append(dst, b)
		}
	}
	return dst, true
}

func valid[T string | []byte](s T) bool {
	switch s := any(s).(type) {
	case string:
		return utf8.ValidString(s)
	case []byte:
		return utf8.Valid(s)
	}
	return false
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// hits has the high bit set in the lowest byte of w that can't be copied as it is: a quote, a
// backslash, a control character and, unless utf (= highs) says that they are known to be
// text, a byte above ASCII. Bits above the lowest are not reliable.
func hits(w, utf uint64) uint64 {
	// For a byte b below 0x80: b - 0x20 borrows into its high bit if b is a control character,
	// and (b ^ quote) - 1 if b is a quote. A byte that borrows from the next one is a hit itself,
	// so the lowest hit is exact. The bytes from 0x80 are the high bits of w.
	return ((w-ones*0x20)|((w^ones*'"')-ones)|((w^ones*'\\')-ones))&^w&highs | w&^utf&highs
}

// special is where the first such byte stands; len(s) if there is none. It looks at eight
// bytes at a time: this is what the agent spends most of a line's time in.
func special[T string | []byte](s T, text bool) int {
	utf := uint64(0)
	if text {
		utf = highs
	}
	i := 0
	for ; i+8 <= len(s); i += 8 {
		if hit := hits(load(s[i:i+8]), utf); hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for ; i < len(s); i++ {
		if b := s[i]; b < 0x20 || b == '"' || b == '\\' || b >= utf8.RuneSelf && !text {
			return i
		}
	}
	return i
}

func load[T string | []byte](s T) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

const hex = "0123456789abcdef"

func appendEscape(dst []byte, b byte) []byte {
	switch b {
	case '"', '\\':
		return append(dst, '\\', b)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
}
