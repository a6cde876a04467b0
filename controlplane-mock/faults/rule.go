package faults

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"agentd/agent/protocol"
)

// Mode is what a rule does to a request.
type Mode string

// The modes. The package comment says what each does to either side.
const (
	Status       Mode = "status"
	Hang         Mode = "hang"
	DropResponse Mode = "dropResponse"
	Reset        Mode = "reset"
	Slow         Mode = "slow"
	Truncate     Mode = "truncate"
	HTML         Mode = "html"
)

var modes = []Mode{Status, Hang, DropResponse, Reset, Slow, Truncate, HTML}

// Rule says which requests are struck, and how. The first rule that matches wins; one that is
// used up, or that the dice spared, doesn't match.
type Rule struct {
	Method string `json:"method,omitempty"` // empty: any
	// Path is a glob: * stands for anything within one segment, ** for any number of segments. Empty: any.
	Path string `json:"path,omitempty"`
	Mode Mode   `json:"mode"`
	// Status is the answer of mode status; 0: 503.
	Status int `json:"status,omitempty"`
	// Code makes the answer of mode status a control plane's own; empty: it comes from something in between.
	Code       protocol.Code   `json:"code,omitempty"`
	Next       *int64          `json:"next,omitempty"`       // with code log_gap
	RetryAfter string          `json:"retryAfter,omitempty"` // of mode status: seconds or an HTTP-date, sent as it is
	Delay      protocol.Millis `json:"delayMs,omitempty"`    // waited first, whatever the mode
	// Probability that a matching request is struck; nil: always.
	Probability *float64 `json:"probability,omitempty"`
	Count       int64    `json:"count,omitempty"` // how many requests are struck; 0: without end
}

// RuleState is a rule with what it has done.
type RuleState struct {
	Rule
	Hits    int64  `json:"hits"`
	Matches string `json:"matches"` // the rule's predicate, in words
}

func (r Rule) validate() error {
	var errs []error
	if !slices.Contains(modes, r.Mode) {
		errs = append(errs, fmt.Errorf("mode %q is unknown: want one of %v", r.Mode, modes))
	}
	if r.Status != 0 && (r.Status < 200 || r.Status > 599) {
		errs = append(errs, fmt.Errorf("status %d: want 200 to 599", r.Status))
	}
	if p := r.Probability; p != nil && !(*p >= 0 && *p <= 1) {
		errs = append(errs, fmt.Errorf("probability %v: want 0 to 1", *p))
	}
	if r.Count < 0 {
		errs = append(errs, fmt.Errorf("count %d: want 0 (without end) or more", r.Count))
	}
	if r.Delay < 0 {
		errs = append(errs, fmt.Errorf("delayMs %d: want 0 or more", r.Delay))
	}
	if _, err := Path(r.Path); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// predicate is what the rule asks of a request. The count comes last: a request that something
// else spared doesn't use it up.
func (r Rule) predicate(random func() float64) (Predicate, error) {
	var all []Predicate
	if r.Method != "" {
		all = append(all, Method(r.Method))
	}
	if r.Path != "" {
		p, err := Path(r.Path)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if r.Probability != nil {
		all = append(all, Chance(*r.Probability, random))
	}
	if r.Count > 0 {
		all = append(all, First(r.Count))
	}
	return And(all...), nil
}

func (r Rule) status() int {
	if r.Status == 0 {
		return http.StatusServiceUnavailable
	}
	return r.Status
}

// String is the rule as one reads it in a log.
func (r Rule) String() string {
	s := string(r.Mode)
	if r.Mode == Status {
		s += " " + strconv.Itoa(r.status())
		if r.Code != "" {
			s += " " + string(r.Code)
		}
	}
	if r.Delay > 0 {
		s += " after " + r.Delay.Duration().String()
	}
	return s
}
