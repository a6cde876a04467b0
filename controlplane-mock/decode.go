package controlplane

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxWireInt is the largest integer that every JSON implementation keeps exact (2^53 − 1).
const maxWireInt = 1<<53 - 1

// maxWireMillis is the longest duration a time.Duration holds.
const maxWireMillis = math.MaxInt64 / int64(time.Millisecond)

// object reads the fields of one JSON object and remembers the first fault. encoding/json alone won't do:
// it takes "LEASETOKEN" for "leaseToken", lets a second one of a name win, and puts U+FFFD for bytes
// that aren't UTF-8.
type object struct {
	raw    map[string]json.RawMessage
	prefix string // of the names in faults: "labels."
	fault  *problem
}

// decodeObject reads a body that must be one JSON object.
func decodeObject(body []byte) (*object, error) {
	if !utf8.Valid(body) {
		return nil, invalid("the body is not valid UTF-8")
	}
	raw, err := splitObject(body)
	if err != nil {
		return nil, err
	}
	return &object{raw: raw}, nil
}

func splitObject(body []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	malformed := func(err error) *problem {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return invalid("the body ends within a JSON object")
		}
		return invalid("the body is not a JSON object: %v", err)
	}
	switch tok, err := dec.Token(); {
	case err != nil:
		return nil, malformed(err)
	case tok != json.Delim('{'):
		return nil, invalid("the body is not a JSON object")
	}
	raw := make(map[string]json.RawMessage, 16)
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, malformed(err)
		}
		name, ok := tok.(string)
		if !ok {
			return nil, invalid("the body is not a JSON object")
		}
		if _, twice := raw[name]; twice {
			return nil, invalid("%s: is there twice", quoteName(name))
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, malformed(err)
		}
		raw[name] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, malformed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("something follows the JSON object")
	}
	return raw, nil
}

// quoteName keeps what a client sent short and printable in a detail.
func quoteName(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	return strings.Trim(strconv.QuoteToASCII(s), `"`)
}

func (o *object) err() error {
	if o.fault == nil {
		return nil
	}
	return o.fault
}

func (o *object) fail(name, format string, args ...any) {
	if o.fault == nil {
		o.fault = invalid("%s%s: "+format, append([]any{o.prefix, quoteName(name)}, args...)...)
	}
}

// get answers the raw value. null is absent: encoders of optional fields write it.
func (o *object) get(name string, required bool) (json.RawMessage, bool) {
	v, ok := o.raw[name]
	if ok && string(v) != "null" {
		return v, true
	}
	if required {
		o.fail(name, "is required")
	}
	return nil, false
}

func (o *object) str(name string, required bool, maxChars int) string {
	v, ok := o.get(name, required)
	if !ok {
		return ""
	}
	if v[0] != '"' {
		o.fail(name, "is not a string")
		return ""
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		o.fail(name, "is not a string")
		return ""
	}
	if maxChars > 0 && utf8.RuneCountInString(s) > maxChars {
		o.fail(name, "is longer than %d characters", maxChars)
		return ""
	}
	return s
}

// id is a string that is empty or an id.
func (o *object) id(name string, required bool) string {
	s := o.str(name, required, 0)
	if s != "" && !validID(s) {
		o.fail(name, "is not an id (at most 64 characters from A-Z a-z 0-9 _ -)")
		return ""
	}
	return s
}

func (o *object) int(name string, required bool, lo, hi, absent int64) int64 {
	v, ok := o.get(name, required)
	if !ok {
		return absent
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (n < lo || n > hi):
		o.fail(name, "is not within %d and %d", lo, hi)
		return absent
	case err != nil:
		o.fail(name, "is not a whole number")
		return absent
	}
	return n
}

func (o *object) millis(name string, absent time.Duration) time.Duration {
	return time.Duration(o.int(name, false, 0, maxWireMillis, absent.Milliseconds())) * time.Millisecond
}

func (o *object) bool(name string, required bool) bool {
	v, ok := o.get(name, required)
	switch {
	case !ok, string(v) == "false":
		return false
	case string(v) == "true":
		return true
	}
	o.fail(name, "is not true or false")
	return false
}

func (o *object) bytes(name string, required bool) []byte {
	s := o.str(name, required, 0)
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		o.fail(name, "is not padded standard base64")
		return nil
	}
	return b
}

func (o *object) time(name string) time.Time {
	s := o.str(name, false, 64)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		o.fail(name, "is not an RFC 3339 time")
		return time.Time{}
	}
	return t
}

// json is any value within a size; absent and null are nil.
func (o *object) json(name string, maxBytes int) json.RawMessage {
	v, ok := o.get(name, false)
	if !ok {
		return nil
	}
	if len(v) > maxBytes {
		o.fail(name, "is larger than %d bytes", maxBytes)
		return nil
	}
	return bytes.Clone(v)
}

func (o *object) strs(name string, maxItems, maxChars int) []string {
	v, ok := o.get(name, false)
	if !ok {
		return nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(v, &items); err != nil {
		o.fail(name, "is not a list")
		return nil
	}
	if len(items) > maxItems {
		o.fail(name, "has more than %d items", maxItems)
		return nil
	}
	list := make([]string, 0, len(items))
	for i, item := range items {
		in := &object{raw: map[string]json.RawMessage{name: item}, prefix: o.prefix}
		s := in.str(name, true, maxChars)
		if in.fault == nil && s == "" {
			in.fail(name, "item %d is empty", i)
		}
		if in.fault != nil {
			if o.fault == nil {
				o.fault = in.fault
			}
			return nil
		}
		list = append(list, s)
	}
	return list
}

func (o *object) strMap(name string, maxItems, maxChars int) map[string]string {
	v, ok := o.get(name, false)
	if !ok {
		return nil
	}
	raw, err := splitObject(v)
	if p, is := errors.AsType[*problem](err); is {
		o.fail(name, "%s", strings.Replace(p.Detail, "the body", "the value", 1))
		return nil
	}
	if len(raw) > maxItems {
		o.fail(name, "has more than %d members", maxItems)
		return nil
	}
	in := &object{raw: raw, prefix: o.prefix + name + "."}
	m := make(map[string]string, len(raw))
	for k := range raw {
		if k == "" || utf8.RuneCountInString(k) > maxChars {
			in.fail(k, "a name has 1 to %d characters", maxChars)
		}
		m[k] = in.str(k, true, maxChars)
	}
	if in.fault != nil && o.fault == nil {
		o.fault = in.fault
	}
	return m
}

func validID(s string) bool { return len(s) <= 64 && isToken(s, false) }

// validProcessID: like an id, but twice as long and with the dot between boot and process.
func validProcessID(s string) bool { return len(s) <= 128 && isToken(s, true) }

func isToken(s string, dots bool) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', dots && c == '.':
		default:
			return false
		}
	}
	return s != ""
}
