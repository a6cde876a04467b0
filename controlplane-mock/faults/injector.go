package faults

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
)

// Config is what an Injector needs; its zero value works.
type Config struct {
	// Random answers from [0,1); nil: the runtime's generator. Tests give their own.
	Random func() float64
	Logger *zap.Logger // nil: none
}

// Injector strikes requests by rule. It may be used concurrently.
type Injector struct {
	random func() float64
	log    *zap.Logger

	mu      sync.Mutex
	rules   []*activeRule // guarded by mu; the slice is replaced, never changed
	changed chan struct{} // guarded by mu; closed when the rules change: lets hung requests go
	closed  bool          // guarded by mu
}

type activeRule struct {
	rule Rule
	when Predicate
	hits atomic.Int64
}

// NewInjector makes an Injector without rules.
func NewInjector(cfg Config) *Injector {
	in := &Injector{random: cfg.Random, log: cfg.Logger, changed: make(chan struct{})}
	if in.random == nil {
		in.random = rand.Float64
	}
	if in.log == nil {
		in.log = zap.NewNop()
	}
	return in
}

// SetRules replaces all rules, or none when one of them is wrong. Requests that hang are let go.
func (in *Injector) SetRules(rules []Rule) error {
	active := make([]*activeRule, len(rules))
	for i, r := range rules {
		if err := r.validate(); err != nil {
			return fmt.Errorf("faults: rules[%d]: %w", i, err)
		}
		when, err := r.predicate(in.random)
		if err != nil {
			return fmt.Errorf("faults: rules[%d]: %w", i, err)
		}
		active[i] = &activeRule{rule: r, when: when}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.rules = active
	if !in.closed {
		close(in.changed)
		in.changed = make(chan struct{})
	}
	return nil
}

// Rules tells the rules in force, in order.
func (in *Injector) Rules() []RuleState {
	in.mu.Lock()
	rules := in.rules
	in.mu.Unlock()
	out := make([]RuleState, len(rules))
	for i, a := range rules {
		out[i] = RuleState{Rule: a.rule, Hits: a.hits.Load(), Matches: a.when.String()}
	}
	return out
}

// Close removes the rules and lets go of every request that hangs, now and later: a server
// that shuts down waits for its handlers.
func (in *Injector) Close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.closed, in.rules = true, nil
	close(in.changed)
}

// pick finds the first rule that strikes r. changed is closed when the rules are no longer those.
func (in *Injector) pick(r *http.Request) (rule Rule, changed <-chan struct{}, struck bool) {
	in.mu.Lock()
	rules, changed := in.rules, in.changed
	in.mu.Unlock()
	for _, a := range rules {
		if a.when.Match(r) {
			n := a.hits.Add(1)
			in.log.Debug("request struck", zap.String("method", r.Method), zap.String("path", r.URL.Path),
				zap.Stringer("rule", a.rule), zap.Int64("hits", n))
			return a.rule, changed, true
		}
	}
	return Rule{}, changed, false
}

// Middleware puts the faults in front of next.
func (in *Injector) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rule, changed, struck := in.pick(r)
		if !struck {
			next.ServeHTTP(w, r)
			return
		}
		strike{rule: rule, changed: changed, next: next}.serve(w, r)
	})
}
