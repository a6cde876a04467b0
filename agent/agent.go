package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
	"agentd/spool"
)

// ErrDraining is the cause of attempts that a stop ended.
var ErrDraining = errors.New("agent: draining")

// Agent is one agent. Use it for one Run.
type Agent struct {
	cfg Config
	log *zap.Logger
	parts
	pulse pulse
	hurry chan struct{} // closed by Hurry
	once  sync.Once     // guards the closing of hurry
	link  linkState
	// queries is what HandleQuery was told; it doesn't change once Run was called.
	queries []Queries

	mu       sync.Mutex
	changed  chan struct{}      // guarded by mu: closed and renewed when anything below changed
	handlers map[string]Handler // guarded by mu
	labels   map[string]string  // guarded by mu
	redact   Redact             // guarded by mu
	maxJobs  int                // guarded by mu
	slots    int                // guarded by mu: slots taken
	attempts map[string]*record // guarded by mu: by job/attempt, from the offer until it is settled
	owed     int                // guarded by mu: outcomes of an earlier process that aren't settled yet
	drained  bool               // guarded by mu: an operator asked for it; running jobs go on
	enough   context.CancelFunc // guarded by mu: breaks off the poll under way, or one that is over
	stopping bool               // guarded by mu: Run's context has ended
	pause    time.Time          // guarded by mu: no job is asked for until then
	polls    PollStatus         // guarded by mu
	late     LatenessStatus     // guarded by mu
	began    time.Time          // guarded by mu: when Run was called
	closers  []func() error     // New's and Close's alone: undone in reverse
	spool    *spool.Spool       // set by New; nil among fakes
}

// linkState is what the control plane said at the last link.
type linkState struct {
	mu    sync.Mutex
	last  protocol.Link
	once  sync.Once
	ready chan struct{} // closed at the first link
}

// record is one attempt on its way.
type record struct {
	job   *protocol.Job
	since time.Time
	end   func(cause error) // ends the attempt's context
	over  chan struct{}     // closed when its processes have ended
	state string            // guarded by Agent.mu
}

func key(jobID string, attempt int64) string { return fmt.Sprintf("%s/%d", jobID, attempt) }

// newAgent wires an agent from parts.
func newAgent(cfg Config, p parts) *Agent {
	a := &Agent{
		cfg: cfg, log: cfg.Logger, parts: p, hurry: make(chan struct{}),
		changed: make(chan struct{}), handlers: map[string]Handler{}, labels: cfg.Labels, redact: cfg.Redact, maxJobs: cfg.MaxJobs,
		attempts: map[string]*record{},
	}
	if a.before == nil {
		a.before = func() *End { return nil }
	}
	a.link.ready = make(chan struct{})
	return a
}

// Handle names who does the jobs of a type. Call it before Run; Reload replaces them later.
func (a *Agent) Handle(typ string, h Handler) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handlers[typ] = h
}

// Hurry makes a stop that is under way, or that comes, skip its waits: jobs are killed, and what isn't
// delivered is left to the next start. What must be on disk is still written. It may be called at any time.
func (a *Agent) Hurry() { a.once.Do(func() { close(a.hurry) }) }

// Close gives up what New opened. Call it after Run, or instead of it.
func (a *Agent) Close() error {
	var errs []error
	for _, c := range slices.Backward(a.closers) {
		errs = append(errs, c())
	}
	a.closers = nil
	return errors.Join(errs...)
}

// update changes the state under the mutex and wakes all who wait for a change.
func (a *Agent) update(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

// linked is told of each link.
func (a *Agent) linked(l protocol.Link) {
	a.link.mu.Lock()
	a.link.last = l
	a.link.mu.Unlock()
	if a.logs != nil {
		a.logs.SetServer(l.MaxLogBody, l.LogEncodings)
	}
	a.link.once.Do(func() { close(a.link.ready) })
	a.update(func() {})
}

func (a *Agent) pollWait() time.Duration {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	if w := a.link.last.PollWait.Duration(); w > 0 {
		return w
	}
	return defaultPollWait
}

// types are the job types in alphabetical order, so that a poll looks alike each time.
func (a *Agent) typesLocked() []string {
	types := make([]string, 0, len(a.handlers))
	for t := range a.handlers {
		types = append(types, t)
	}
	slices.SortFunc(types, strings.Compare)
	return types
}

// active is the number of attempts whose processes live, or that are being accepted.
func (a *Agent) active() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slots
}

// unsettled is the number of attempts that are not over for the server.
func (a *Agent) unsettled() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.attempts) + a.owed
}

// changes returns the channel that the next change closes.
func (a *Agent) changes() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}
