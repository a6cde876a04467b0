package protocol

import (
	"bytes"
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// ParseRecord reads one line of a log body, with or without its newline. It is lenient in what
// JSON allows (order of members, white space, unknown members) and strict in what the protocol
// says: ts and s are required but for a gap, and exactly one of m, b and gap. A fault is a
// *FieldError. The record owns its memory.
func ParseRecord(line []byte) (Record, error) {
	if r, ok := parseOwn(line); ok {
		return r, nil
	}
	return parseGeneral(line)
}

// parseOwn reads a line in the very shape that AppendRecord writes it; false: it isn't one, or
// it holds what is better left to the general reader (a gap, an uncommon escape).
func parseOwn(line []byte) (r Record, ok bool) {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	if line, ok = bytes.CutPrefix(line, []byte(`{"ts":`)); !ok {
		return r, false
	}
	// At most 18 digits, so that nothing overflows, and no leading zero, which JSON forbids.
	digits := 0
	for ; digits < len(line) && digits < 18 && line[digits] >= '0' && line[digits] <= '9'; digits++ {
		r.Time = r.Time*10 + int64(line[digits]-'0')
	}
	if digits == 0 || digits > 1 && line[0] == '0' {
		return r, false
	}
	line = line[digits:]
	switch {
	case bytes.HasPrefix(line, []byte(`,"s":"out","`)):
		r.Stream, line = Stdout, line[12:]
	case bytes.HasPrefix(line, []byte(`,"s":"err","`)):
		r.Stream, line = Stderr, line[12:]
	case bytes.HasPrefix(line, []byte(`,"s":"agent","`)):
		r.Stream, line = Remark, line[14:]
	default:
		return r, false
	}
	if len(line) < 4 || line[0] != 'm' && line[0] != 'b' || string(line[1:4]) != `":"` {
		return r, false
	}
	binary := line[0] == 'b'
	line = line[4:]
	if binary {
		end := bytes.IndexByte(line, '"')
		// The decoder skips newlines, which JSON doesn't have in a string.
		if end < 0 || bytes.ContainsAny(line[:end], "\r\n\\") {
			return r, false
		}
		r.Bytes = make([]byte, base64.StdEncoding.DecodedLen(end))
		n, err := base64.StdEncoding.Decode(r.Bytes, line[:end])
		if err != nil {
			return r, false
		}
		r.Bytes, line = r.Bytes[:n], line[end+1:]
	} else if r.Text, line, ok = parseText(line); !ok {
		return r, false
	}
	if rest, is := bytes.CutPrefix(line, []byte(`,"part":true`)); is {
		r.Part, line = true, rest
	}
	if rest, is := bytes.CutPrefix(line, []byte(`,"eof":true`)); is {
		r.EOF, line = true, rest
	}
	return r, string(line) == "}"
}

// parseText reads the inside of a JSON string up to and with its closing quote.
func parseText(line []byte) (text string, rest []byte, ok bool) {
	i := special(line, true)
	if i == len(line) {
		return "", nil, false
	}
	if line[i] == '"' {
		return string(line[:i]), line[i+1:], utf8.Valid(line[:i])
	}
	var b strings.Builder
	b.Grow(len(line))
	for {
		if !utf8.Valid(line[:i]) {
			return "", nil, false
		}
		b.Write(line[:i])
		line = line[i:]
		switch {
		case line[0] == '"':
			return b.String(), line[1:], true
		case line[0] != '\\' || len(line) < 2:
			return "", nil, false
		}
		size := 2
		switch line[1] {
		case '"', '\\', '/':
			b.WriteByte(line[1])
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'u':
			if len(line) < 6 || line[2] != '0' || line[3] != '0' {
				return "", nil, false
			}
			hi, lo := strings.IndexByte(hex, line[4]), strings.IndexByte(hex, line[5])
			if hi < 0 || lo < 0 {
				return "", nil, false
			}
			b.WriteRune(rune(hi<<4 | lo))
			size = 6
		default:
			return "", nil, false
		}
		line = line[size:]
		if i = special(line, true); i == len(line) {
			return "", nil, false
		}
	}
}

// wireRecord is a record as it stands in JSON.
type wireRecord struct {
	Time   *int64  `json:"ts"`
	Stream *Stream `json:"s"`
	Text   *string `json:"m"`
	Bytes  *[]byte `json:"b"`
	Part   bool    `json:"part"`
	EOF    bool    `json:"eof"`
	Gap    *int64  `json:"gap"`
	Reason string  `json:"reason"`
}

func parseGeneral(line []byte) (Record, error) {
	var w wireRecord
	if err := Decode(line, &w); err != nil {
		return Record{}, err
	}
	r := Record{Part: w.Part, EOF: w.EOF, Reason: w.Reason}
	if w.Time != nil {
		r.Time = *w.Time
	}
	if w.Stream != nil {
		r.Stream = *w.Stream
	}
	contents := 0
	if w.Text != nil {
		r.Text = *w.Text
		contents++
	}
	if w.Bytes != nil {
		r.Bytes = *w.Bytes
		contents++
	}
	if w.Gap != nil {
		r.Gap = *w.Gap
		contents++
	}
	switch {
	case contents != 1:
		return Record{}, fault("m", "is required, or b, or gap, and only one of them")
	case w.Gap != nil && r.Gap < 1:
		return Record{}, fault("gap", "is %d, not a number from 1", r.Gap)
	case w.Gap != nil:
		return r, nil
	case w.Time == nil:
		return Record{}, fault("ts", "is required")
	case w.Stream == nil:
		return Record{}, fault("s", "is required")
	}
	switch r.Stream {
	case Stdout, Stderr, Remark:
		return r, nil
	default:
		return Record{}, fault("s", "is not out, err or agent")
	}
}
