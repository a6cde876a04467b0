package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Status is how a check ended.
type Status string

// The ends of a check.
const (
	Holds   Status = "holds"
	Fails   Status = "fails"
	Skipped Status = "skipped"
)

// Result is a check and how it ended. Detail says what was seen instead, or why it was skipped.
type Result struct {
	Name    string   `json:"name"`
	Section string   `json:"section"`
	Says    []string `json:"says"`
	Status  Status   `json:"status"`
	Detail  string   `json:"detail,omitempty"`
	TookMs  int64    `json:"tookMs"`
}

// Run puts every check to the server, each as a subtest.
func Run(t *testing.T, target Target) {
	t.Helper()
	results, err := Probe(t.Context(), target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		t.Run(r.Name, func(t *testing.T) {
			switch r.Status {
			case Skipped:
				t.Skip(r.Detail)
			case Fails:
				t.Errorf("the protocol says under %q:\n  %q\n%s", r.Section, r.Says, r.Detail)
			case Holds:
			}
		})
	}
}

// Probe puts every check to the server and returns the results in the table's order. progress, if not nil, is told each result
// as it comes, one call at a time, and again if it was tried again. The error is for what kept it from asking at all: the target's own faults, no server.
func Probe(ctx context.Context, target Target, progress func(Result)) ([]Result, error) {
	target = target.withDefaults()
	if err := target.validate(); err != nil {
		return nil, err
	}
	s := newSession(target)
	defer s.close()
	if err := s.learn(ctx); err != nil {
		return nil, err
	}
	var chosen []Check
	for _, c := range Checks() {
		if target.Only == nil || target.Only.MatchString(c.Name) {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("conformance: no check has such a name")
	}
	results := make([]Result, len(chosen))
	var mu sync.Mutex
	do := func(i int) {
		r := s.try(ctx, i, chosen[i])
		mu.Lock()
		defer mu.Unlock()
		results[i] = r
		if progress != nil {
			progress(r)
		}
	}
	slots := make(chan struct{}, target.Workers)
	var wg sync.WaitGroup
	// The long ones first: the others pass meanwhile.
	for _, long := range []bool{true, false} {
		for i, c := range chosen {
			if c.needs.alone() || c.needs.has(minute) != long {
				continue
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				do(i)
			})
		}
	}
	wg.Wait()
	// What failed is asked once more, alone: a lease that ran out because this machine was busy is nobody's fault, and a server that
	// breaks a rule breaks it again. Not so where chance decides.
	for i, c := range chosen {
		if results[i].Status == Fails && !c.needs.has(chance) && !target.Strict {
			first := results[i].Detail
			if do(i); results[i].Status == Holds {
				results[i].Detail = "only at the second try; at first: " + first
			}
		}
	}
	for _, n := range []need{faulty, restart, last} {
		for i, c := range chosen {
			if c.needs.has(n) {
				do(i)
			}
		}
	}
	return results, ctx.Err()
}

// session is what the checks of one run share.
type session struct {
	t   Target
	web *http.Client
	ttl time.Duration // of a lease, as links are told

	mu       sync.Mutex
	offences map[string][]string // guarded by mu; what any answer did wrong, by the rule that it broke
}

func newSession(t Target) *session {
	s := &session{t: t, web: t.HTTP, offences: map[string][]string{}}
	if s.web == nil {
		s.web = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, Proxy: http.ProxyFromEnvironment}}
	}
	follow := *s.web
	follow.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.web = &follow
	return s
}

func (s *session) close() {
	if s.t.HTTP == nil {
		s.web.CloseIdleConnections()
	}
}

// Why nothing could be tried.
var (
	// ErrUnreachable: nothing that speaks HTTP answers where the admin side should be.
	ErrUnreachable = errors.New("conformance: the server can't be reached")
	// ErrRefused: the admin token is not the server's.
	ErrRefused = errors.New("conformance: the server refuses the admin token")
)

// learn links an agent for what every check must know.
func (s *session) learn(ctx context.Context) error {
	p := newProbe(ctx, s, 0)
	p.deaf = true
	switch hello := p.send(ctx, s.t.AdminURL, "GET", "/api/v1/jobs?limit=1", s.t.AdminToken, nil); {
	case hello.err != nil:
		return fmt.Errorf("%w: %w", ErrUnreachable, hello.err)
	case hello.status == http.StatusUnauthorized:
		return ErrRefused
	}
	r := s.try(ctx, 0, Check{Name: "link", run: func(p *probe) {
		p.s.ttl = time.Duration(p.agent().link.int("leaseTtlMs")) * time.Millisecond
		p.assert(p.s.ttl > 0, "leaseTtlMs is %v", p.s.ttl)
	}})
	if r.Status != Holds {
		return fmt.Errorf("conformance: no agent can be linked, so nothing can be tried: %s", r.Detail)
	}
	return nil
}

// failed and passed over are how a check ends early.
type (
	failed  struct{ detail string }
	skipped struct{ why string }
)

// try runs one check and tidies up after it.
func (s *session) try(ctx context.Context, index int, c Check) (r Result) {
	r = Result{Name: c.Name, Section: c.Section, Says: c.Says, Status: Holds}
	if why := c.needs.missing(s.t); why != "" {
		r.Status, r.Detail = Skipped, why
		return r
	}
	// Far above the longest check, so that a server that hangs is a failure and not the end of the run.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+12*s.ttl)
	p := newProbe(ctx, s, index)
	p.deaf = c.needs.has(faulty | restart)
	began := time.Now()
	defer func() {
		cancel()
		p.wg.Wait()
		p.tidy()
		r.TookMs = time.Since(began).Milliseconds()
	}()
	defer func() {
		switch end := recover().(type) {
		case nil:
		case failed:
			r.Status, r.Detail = Fails, end.detail
		case skipped:
			r.Status, r.Detail = Skipped, end.why
		default:
			panic(end)
		}
	}()
	c.run(p)
	return r
}
