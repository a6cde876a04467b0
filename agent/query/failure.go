package query

import (
	"errors"
	"fmt"
	"time"

	"agentd/agent/protocol"
)

// The codes that this package gives where a connector can't.
const (
	CodeFailed  = "connector_failed"   // it ended, crashed, or answered what isn't a page
	CodeTooBig  = "page_too_large"     // above MaxPage
	CodeTimeout = "connector_timeout"  // it used up the query's time; the asker is gone by then, so this is for embedders
	CodeStopped = "connector_stopping" // the agent is stopping
)

// Failure is why there is no page. Its text never carries what was asked or answered.
type Failure struct {
	Code       string
	RetryAfter time.Duration // 0: none
}

func (f *Failure) Error() string { return "query: " + f.Code }

// wire is what the control plane is told: the handler's own failure, or that it failed.
func wire(err error) *protocol.QueryError {
	f, ok := errors.AsType[*Failure](err)
	if !ok || !validCode(f.Code) {
		return &protocol.QueryError{Code: CodeFailed}
	}
	return &protocol.QueryError{Code: f.Code, RetryAfter: int64((f.RetryAfter + time.Second - 1) / time.Second)}
}

// validCode keeps a code a code: what a connector calls one could be a sentence with the query in it.
func validCode(code string) bool {
	if code == "" || len(code) > protocol.MaxID {
		return false
	}
	for _, c := range []byte(code) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// reply is what a connector writes: a page, or code and retryAfter (seconds).
type reply struct {
	ID         string         `json:"id"`
	Page       *protocol.Page `json:"page"`
	Code       string         `json:"code"`
	RetryAfter int64          `json:"retryAfter"`
}

func (r reply) result() (protocol.Page, error) {
	switch {
	case r.Code != "":
		const longest = 24 * 3600
		return protocol.Page{}, &Failure{Code: r.Code, RetryAfter: time.Duration(min(max(r.RetryAfter, 0), longest)) * time.Second}
	case r.Page == nil:
		return protocol.Page{}, fmt.Errorf("neither page nor code: %w", &Failure{Code: CodeFailed})
	}
	return *r.Page, nil
}
