package controlplane

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strconv"
	"unicode/utf8"

	"agentd/agent/protocol"
)

// record is one line of a log body, parsed as far as it must be. Its slices point into the line.
// The codec is this package's own, not the agent's: two sides that share one can be wrong together.
type record struct {
	ts     int64
	timed  bool // ts is there: every record but a gap has one
	stream protocol.Stream
	kind   byte // 'm', 'b' or 'g'

	text    []byte // of m and b: what stands between the quotes
	escaped bool   // m: text holds escapes
	part    bool
	eof     bool
	gap     int64
	reason  string
	exact   bool // the line is in the canonical form, with no field that we don't know
}

// numbers is how many record numbers r covers.
func (r *record) numbers() int64 {
	if r.kind == 'g' {
		return r.gap
	}
	return 1
}

const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// scanRecord parses a line in the form that agents write, newline included: {"ts":N,"s":"out","m":"…"} with part or
// eof. It returns the line's length, or 0 for anything else, also for a line that p holds only in part: parseRecord
// decides about those. Whatever it accepts is valid.
func scanRecord(p []byte, r *record) int {
	const head, mid = `{"ts":`, `,"s":"`
	if len(p) < 24 || string(p[:len(head)]) != head {
		return 0
	}
	i := len(head)
	var ts int64
	for ; i < len(head)+18 && i < len(p) && p[i]-'0' <= 9; i++ { // 18 digits can't overflow
		ts = ts*10 + int64(p[i]-'0')
	}
	if i == len(head) || p[len(head)] == '0' && i > len(head)+1 || len(p) < i+12 || string(p[i:i+len(mid)]) != mid {
		return 0
	}
	i += len(mid)
	switch {
	case string(p[i:i+4]) == `out"`:
		r.stream, i = protocol.Stdout, i+4
	case string(p[i:i+4]) == `err"`:
		r.stream, i = protocol.Stderr, i+4
	case string(p[i:i+6]) == `agent"`:
		r.stream, i = protocol.Remark, i+6
	default:
		return 0
	}
	if len(p) < i+6 || p[i] != ',' || p[i+1] != '"' || p[i+3] != '"' || p[i+4] != ':' || p[i+5] != '"' {
		return 0
	}
	kind := p[i+2]
	i += 6
	end, escaped := -1, false
	switch kind {
	case 'm':
		end, escaped = scanString(p, i)
	case 'b':
		end = scanBase64(p, i)
	}
	if end < 0 {
		return 0
	}
	r.ts, r.timed, r.kind, r.text, r.escaped, r.exact = ts, true, kind, p[i:end], escaped, true
	r.part, r.eof, r.gap, r.reason = false, false, 0, ""
	i = end + 1
	if i < len(p) && p[i] == ',' {
		const part, eof = `,"part":true`, `,"eof":true`
		switch {
		case len(p) > i+len(part) && string(p[i:i+len(part)]) == part:
			r.part, i = true, i+len(part)
		case len(p) > i+len(eof) && string(p[i:i+len(eof)]) == eof:
			r.eof, i = true, i+len(eof)
		}
	}
	if len(p) < i+2 || p[i] != '}' || p[i+1] != '\n' {
		return 0
	}
	return i + 2
}

// scanString finds the quote that ends the JSON string starting at i, and checks everything up to it: no control
// bytes, valid escapes, valid UTF-8. Eight bytes at a time; -1 for anything that isn't a whole, plain string.
func scanString(p []byte, i int) (end int, escaped bool) {
	start, high := i, uint64(0)
	for i+8 <= len(p) {
		w := binary.LittleEndian.Uint64(p[i:])
		high |= w
		quote, slash := w^('"'*ones), w^('\\'*ones)
		// A set high bit marks a byte below 0x20, a quote or a backslash. Borrows can mark bytes above a true hit only, and we take the lowest.
		hit := ((w - 0x20*ones) &^ w) | ((quote - ones) &^ quote) | ((slash - ones) &^ slash)
		if hit &= highs; hit == 0 {
			i += 8
			continue
		}
		i += bits.TrailingZeros64(hit) / 8
		switch p[i] {
		case '"':
			if high&highs != 0 && !utf8.Valid(p[start:i]) {
				return -1, false
			}
			return i, escaped
		case '\\':
			n := escapeLen(p[i:])
			if n == 0 {
				return -1, false
			}
			escaped = true
			i += n
		default:
			return -1, false
		}
	}
	for ; i < len(p); i++ {
		switch c := p[i]; {
		case c == '"':
			if !utf8.Valid(p[start:i]) {
				return -1, false
			}
			return i, escaped
		case c < 0x20:
			return -1, false
		case c == '\\':
			n := escapeLen(p[i:])
			if n == 0 {
				return -1, false
			}
			escaped = true
			i += n - 1
		}
	}
	return -1, false
}

// escapeLen is the length of the escape that p starts with; 0 if it is none, cut, or a surrogate, which needs a closer look.
func escapeLen(p []byte) int {
	if len(p) < 2 {
		return 0
	}
	switch p[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if v, ok := hex4(p[2:]); ok && (v < 0xD800 || v > 0xDFFF) {
			return 6
		}
	}
	return 0
}

func hex4(p []byte) (rune, bool) {
	if len(p) < 4 {
		return 0, false
	}
	var v rune
	for _, c := range p[:4] {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			v = v<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// base64Value maps a byte to its six bits, 0xFF for what is none.
var base64Value = func() (t [256]byte) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for i := range t {
		t[i] = 0xFF
	}
	for i := range len(alphabet) {
		t[alphabet[i]] = byte(i)
	}
	return t
}()

// scanBase64 finds the quote that ends padded standard base64 starting at i; -1 for anything else.
func scanBase64(p []byte, i int) int {
	end := i
	for end < len(p) && base64Value[p[end]] != 0xFF {
		end++
	}
	digits, last := end-i, byte(0)
	if digits > 0 {
		last = base64Value[p[end-1]]
	}
	pads := 0
	for end < len(p) && p[end] == '=' && pads < 2 {
		end++
		pads++
	}
	if end >= len(p) || p[end] != '"' || (digits+pads)%4 != 0 {
		return -1
	}
	// Bits beyond the last byte must be zero, or two texts would mean the same bytes.
	switch pads {
	case 1:
		if last&3 != 0 {
			return -1
		}
	case 2:
		if last&15 != 0 {
			return -1
		}
	}
	return end
}

// parseRecord parses a line in any form that JSON allows. The fault names the field.
func parseRecord(line []byte, r *record) error {
	o, err := decodeObject(line)
	if err != nil {
		return err
	}
	*r = record{}
	r.gap = o.int("gap", false, 1, maxWireInt, 0)
	isGap := r.gap > 0
	const minTS, maxTS = -maxWireInt, maxWireInt // microseconds: ±285 years, which no clock reaches by mistake
	if _, ok := o.get("ts", !isGap); ok {
		r.ts, r.timed = o.int("ts", true, minTS, maxTS, 0), true
	}
	r.stream = protocol.Stream(o.str("s", !isGap, 0))
	if o.fault == nil && r.stream != protocol.Stdout && r.stream != protocol.Stderr && r.stream != protocol.Remark && (!isGap || r.stream != "") {
		o.fail("s", "is none of out, err, agent")
	}
	r.part, r.eof = o.bool("part", false), o.bool("eof", false)
	m, isText := o.get("m", false)
	b, isBytes := o.get("b", false)
	switch {
	case o.fault != nil:
	case isText && isBytes, isGap && (isText || isBytes):
		o.fail("m", "exactly one of m, b and gap is allowed")
	case isGap:
		r.kind, r.reason = 'g', o.str("reason", false, maxReason)
	case isText:
		r.kind = 'm'
		o.str("m", true, 0)
		if o.fault == nil && loneSurrogate(m) {
			o.fail("m", "holds half a surrogate pair; bytes that aren't UTF-8 go into b")
		}
		if o.fault == nil {
			r.text, r.escaped = m[1:len(m)-1], true
		}
	case isBytes:
		r.kind = 'b'
		raw := o.bytes("b", true)
		if o.fault == nil {
			// Its string may have been escaped; what we keep is plain.
			r.text = b[1 : len(b)-1]
			if scanBase64(b, 1) != len(b)-1 {
				r.text = []byte(base64.StdEncoding.EncodeToString(raw))
			}
		}
	default:
		o.fail("m", "one of m, b and gap is required")
	}
	return o.err()
}

// maxReason bounds a gap's reason, which a reader sees as part of one line.
const maxReason = 256

// loneSurrogate says whether a JSON string holds an escape that stands for no character: a decoder puts U+FFFD there, and the line would change.
func loneSurrogate(s []byte) bool {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		i++
		if i >= len(s) || s[i] != 'u' {
			continue
		}
		v, ok := hex4(s[i+1:])
		if !ok {
			return true
		}
		i += 4
		switch {
		case v >= 0xDC00 && v <= 0xDFFF:
			return true
		case v >= 0xD800 && v <= 0xDBFF:
			if i+2 >= len(s) || s[i+1] != '\\' || s[i+2] != 'u' {
				return true
			}
			if lo, ok := hex4(s[i+3:]); !ok || lo < 0xDC00 || lo > 0xDFFF {
				return true
			}
			i += 6
		}
	}
	return false
}

// appendContent appends what the job printed: the bytes of m or b.
func (r *record) appendContent(dst []byte) ([]byte, error) {
	switch {
	case r.kind == 'b':
		return base64.StdEncoding.AppendDecode(dst, r.text)
	case !r.escaped:
		return append(dst, r.text...), nil
	}
	quoted := make([]byte, 0, len(r.text)+2)
	quoted = append(append(append(quoted, '"'), r.text...), '"')
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return dst, err
	}
	return append(dst, s...), nil
}

// appendJSON appends r as a JSON object without a newline. n ≥ 0 is shown as its number.
func (r *record) appendJSON(dst []byte, n int64) []byte {
	dst = append(dst, '{')
	if n >= 0 {
		dst = append(strconv.AppendInt(append(dst, `"n":`...), n, 10), ',')
	}
	if r.timed {
		dst = append(strconv.AppendInt(append(dst, `"ts":`...), r.ts, 10), ',')
	}
	if r.stream != "" {
		dst = append(append(append(dst, `"s":"`...), r.stream...), `",`...)
	}
	switch r.kind {
	case 'g':
		dst = strconv.AppendInt(append(dst, `"gap":`...), r.gap, 10)
		if r.reason != "" {
			reason, err := json.Marshal(r.reason)
			if err != nil {
				panic("BUG: controlplane: a string that can't be encoded: " + err.Error())
			}
			dst = append(append(dst, `,"reason":`...), reason...)
		}
	default:
		dst = append(append(append(append(dst, '"', r.kind), `":"`...), r.text...), '"')
	}
	if r.part {
		dst = append(dst, `,"part":true`...)
	}
	if r.eof {
		dst = append(dst, `,"eof":true`...)
	}
	return append(dst, '}')
}
