package protocol

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Error is how every call of a Client fails. A non-empty Code means that the control plane
// itself said so; an empty one, that the client concluded it from a status, from an answer
// that doesn't speak the protocol, or from the lack of any answer.
type Error struct {
	Op         string        // the call: "heartbeat", "ship log"
	Status     int           // of the answer; 0 = there was none
	Code       Code          // what the server said; "" = inferred
	Detail     string        // the server's detail, or what is wrong and what to do about it
	Next       int64         // with CodeLogGap: where the server's log ends
	RetryAfter time.Duration // how long the server asks to be left alone, at most 10 min; 0 = it didn't say
	Err        error         // the cause, where there is one
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("protocol: ")
	b.WriteString(e.Op)
	if e.Status != 0 {
		b.WriteString(": ")
		b.WriteString(strconv.Itoa(e.Status))
	}
	if e.Code != "" {
		b.WriteString(" ")
		b.WriteString(string(e.Code))
	}
	if e.Detail != "" {
		b.WriteString(": ")
		b.WriteString(e.Detail)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap is the cause, so that errors.Is finds context.Canceled and the like.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf is what the server said; "" where it said nothing that counts: a transport error, an
// answer that doesn't speak the protocol, a status that a proxy may have made up.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// RetryAfter is how long the server (or a proxy) asks to be left alone, at most 10 minutes.
func RetryAfter(err error) (time.Duration, bool) {
	if e, ok := errors.AsType[*Error](err); ok && e.RetryAfter > 0 {
		return e.RetryAfter, true
	}
	return 0, false
}

// FieldError says which field of a message is wrong, and why. Servers answer it as
// CodeInvalid with the text as detail.
type FieldError struct {
	Field string // as on the wire, dotted: "queries[0].id"
	Why   string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s: %s", e.Field, e.Why) }
