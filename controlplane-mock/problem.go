package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// problem is an error that is an answer.
type problem struct {
	protocol.Problem
	retryAfter time.Duration     // > 0: said in whole seconds, rounded up
	header     map[string]string // further headers
}

func (p *problem) Error() string { return fmt.Sprintf("controlplane: %s: %s", p.Code, p.Detail) }

func newProblem(status int, code protocol.Code, format string, args ...any) *problem {
	return &problem{Problem: protocol.Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: fmt.Sprintf(format, args...),
	}}
}

func invalid(format string, args ...any) *problem {
	return newProblem(http.StatusBadRequest, protocol.CodeInvalid, format, args...)
}

func corrupt(format string, args ...any) *problem {
	return newProblem(http.StatusBadRequest, protocol.CodeCorrupt, format, args...)
}

func tooLarge(format string, args ...any) *problem {
	return newProblem(http.StatusRequestEntityTooLarge, protocol.CodeTooLarge, format, args...)
}

func notFound(format string, args ...any) *problem {
	return newProblem(http.StatusNotFound, protocol.CodeNotFound, format, args...)
}

func unavailable(after time.Duration, format string, args ...any) *problem {
	p := newProblem(http.StatusServiceUnavailable, protocol.CodeUnavailable, format, args...)
	p.retryAfter = after
	return p
}

func throttled(after time.Duration, format string, args ...any) *problem {
	p := newProblem(http.StatusTooManyRequests, protocol.CodeThrottled, format, args...)
	p.retryAfter = after
	return p
}

// unauthenticated says the same whatever was wrong, so that nobody learns which ids, tokens or keys exist.
func unauthenticated() *problem {
	p := newProblem(http.StatusUnauthorized, protocol.CodeUnauthenticated, "the credential or proof is missing, unknown, expired or of the wrong kind")
	p.header = map[string]string{"WWW-Authenticate": `Bearer realm="agentd"`}
	return p
}

func revoked() *problem {
	return newProblem(http.StatusForbidden, protocol.CodeRevoked, "this agent was revoked; an admin can restore it")
}

func identityConflict(detail string) *problem {
	return newProblem(http.StatusConflict, protocol.CodeIdentityConflict, "%s", detail)
}

func leaseLost() *problem {
	return newProblem(http.StatusConflict, protocol.CodeLeaseLost, "the attempt is over, or not this agent's")
}

// WriteProblem answers with an error in the protocol's form. For handlers mounted beside the server's own.
func WriteProblem(w http.ResponseWriter, status int, code protocol.Code, detail string) {
	newProblem(status, code, "%s", detail).write(w)
}

func (p *problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p.Problem)
	if err != nil {
		panic("BUG: controlplane: a problem that can't be encoded: " + err.Error())
	}
	h := w.Header()
	for k, v := range p.header {
		h.Set(k, v)
	}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((p.retryAfter+time.Second-1)/time.Second), 10))
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the client may be gone; there is nobody left to tell
}

// asProblem maps what a store or handler answered to what the client is told.
func asProblem(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if gap, ok := errors.AsType[*store.GapError](err); ok {
		p := newProblem(http.StatusConflict, protocol.CodeLogGap, "the batch starts above what is stored; next is %d", gap.Next)
		p.Next = &gap.Next
		return p
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return notFound("unknown, or not this agent's")
	case errors.Is(err, store.ErrLeaseLost):
		return leaseLost()
	case errors.Is(err, store.ErrConflict):
		return newProblem(http.StatusConflict, protocol.CodeConflict, "in conflict with what is stored")
	case errors.Is(err, store.ErrDenied):
		return unauthenticated()
	case errors.Is(err, store.ErrIdentity):
		return identityConflict("this agent id belongs to another key pair; to take it over, link with a token bound to it")
	case errors.Is(err, store.ErrRevoked):
		return revoked()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return unavailable(time.Second, "the request ended before it was served")
	default:
		// A fault of the store itself: its text may name files and hosts, so it goes to the log only.
		return unavailable(time.Second, "the store can't serve now")
	}
}
