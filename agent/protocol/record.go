package protocol

import (
	"encoding/base64"
	"math/bits"
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
		dst[text-3] = 'b'
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
	i := special(s, false)
	if i == len(s) {
		return append(dst, s...), true
	}
	// From the first byte that isn't ASCII on, the text is checked once; the scan then looks for escapes only.
	utf := s[i] >= utf8.RuneSelf
	if utf && !valid(s[i:]) {
		return dst, false
	}
	for {
		if utf {
			i += special(s[i:], true)
		}
		dst = append(dst, s[:i]...)
		if i == len(s) {
			return dst, true
		}
		if s[i] >= utf8.RuneSelf {
			if !valid(s[i:]) {
				return dst, false
			}
			utf, s, i = true, s[i:], 0
			continue
		}
		dst = appendEscape(dst, s[i])
		s = s[i+1:]
		i = special(s, utf)
	}
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

// special is where the first byte stands that can't be copied as it is: a quote, a backslash,
// a control character and, unless utf, a byte above ASCII; len(s) if there is none. It looks
// at eight bytes at a time: this is what the agent spends most of a line's time in.
func special[T string | []byte](s T, utf bool) int {
	i := 0
	for ; i+8 <= len(s); i += 8 {
		w := load(s[i : i+8])
		// A byte b below 0x80: b - 0x20 borrows into the high bit if it is a control character;
		// b ^ quote, minus one, if it is a quote. Borrows run upwards only, so the lowest hit is exact.
		hit := (w - ones*0x20) | ((w ^ ones*'"') - ones) | ((w ^ ones*'\\') - ones)
		if utf {
			hit &^= w // bytes above ASCII are none
		} else {
			hit |= w
		}
		if hit &= highs; hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for ; i < len(s); i++ {
		if b := s[i]; b < 0x20 || b == '"' || b == '\\' || b >= utf8.RuneSelf && !utf {
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
