package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
)

// OutageMode is how a port is down.
type OutageMode string

// The two ways: the kernel refuses, or somebody accepts and never says anything.
const (
	Refuse    OutageMode = "refuse"
	Blackhole OutageMode = "blackhole"
)

const (
	// restStep is how much rest is asked for at a time, restEvery how often: four times as often as
	// needed, so that a machine that is busy doesn't let a lease run out in between.
	restStep  = 2 * time.Second
	restEvery = restStep / 4
)

// maxOutage bounds an outage: longer ones are a mistyped unit.
const maxOutage = 24 * time.Hour

// OutageSpec is what PUT /mock/v1/outage takes.
type OutageSpec struct {
	Mode OutageMode      `json:"mode"`
	For  protocol.Millis `json:"forMs"`
	// Partition leaves the server at work, so that leases run out; without it, it is as if the
	// server had been stopped.
	Partition bool `json:"partition"`
}

func (s OutageSpec) validate() error {
	if s.Mode != Refuse && s.Mode != Blackhole {
		return fmt.Errorf("faults: mode %q is unknown: want %s or %s", s.Mode, Refuse, Blackhole)
	}
	if s.For <= 0 || s.For > protocol.ToMillis(maxOutage) {
		return fmt.Errorf("faults: forMs %d: want 1 to %d", s.For, protocol.ToMillis(maxOutage))
	}
	return nil
}

// OutageState is what GET /mock/v1/outage tells.
type OutageState struct {
	Active    bool            `json:"active"`
	Mode      OutageMode      `json:"mode,omitempty"`
	Remaining protocol.Millis `json:"remainingMs,omitempty"`
	Partition bool            `json:"partition,omitempty"`
}

// OutageConfig is what an Outage needs; its zero value works.
type OutageConfig struct {
	// Rest makes the server spare its leases for so long and for one TTL after, as if it had been
	// stopped. It is called again and again while an outage without partition is on, and once as it
	// ends, so that one that is ended early is no longer than it was. It must not block. May be nil.
	Rest   func(time.Duration)
	Logger *zap.Logger // nil: none
}

// Outage takes listeners and handlers down for a while. It may be used concurrently.
type Outage struct {
	cfg OutageConfig
	log *zap.Logger

	mu     sync.Mutex
	now    *down              // guarded by mu; nil while all is well
	calm   context.Context    //nolint:containedctx // guarded by mu; ends as an outage begins, then renewed: an event with many listeners
	strike context.CancelFunc // guarded by mu; ends calm
	ports  map[*port]struct{} // guarded by mu
	closed bool               // guarded by mu
}

// down is one outage. Its fields don't change; over is closed at its end.
type down struct {
	spec  OutageSpec
	until time.Time
	timer *time.Timer // ends it
	rest  *time.Timer // asks for more rest; nil with a partition
	over  chan struct{}
}

// NewOutage makes an Outage; nothing is down.
func NewOutage(cfg OutageConfig) *Outage {
	o := &Outage{cfg: cfg, log: cfg.Logger, ports: map[*port]struct{}{}}
	o.calm, o.strike = context.WithCancel(context.Background())
	if o.log == nil {
		o.log = zap.NewNop()
	}
	return o
}

// Begin starts an outage, in place of one that is on.
func (o *Outage) Begin(spec OutageSpec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	length := spec.For.Duration()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errors.New("faults: the server is shutting down")
	}
	o.endLocked()
	d := &down{spec: spec, until: time.Now().Add(length), over: make(chan struct{})}
	if o.cfg.Rest != nil && !spec.Partition {
		o.cfg.Rest(restStep) // before the port goes down: no lease may run out in between
		d.rest = time.AfterFunc(restEvery, func() { o.restOn(d) })
	}
	d.timer = time.AfterFunc(length, func() { o.end(d) })
	o.now = d
	o.strike()
	o.calm, o.strike = context.WithCancel(context.Background())
	for p := range o.ports {
		p.takeDown(d)
	}
	o.log.Info("outage began", zap.String("mode", string(spec.Mode)), zap.Duration("for", length), zap.Bool("partition", spec.Partition))
	return nil
}

// End ends an outage, if one is on.
func (o *Outage) End() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endLocked()
}

// Close ends an outage and lets no other begin: a server that shuts down waits for its handlers.
func (o *Outage) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.endLocked()
}

// State tells what is on.
func (o *Outage) State() OutageState {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.now
	if d == nil {
		return OutageState{}
	}
	return OutageState{Active: true, Mode: d.spec.Mode, Partition: d.spec.Partition,
		Remaining: protocol.ToMillis(max(0, time.Until(d.until)))}
}

func (o *Outage) end(d *down) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now == d {
		o.endLocked()
	}
}

// restOn asks for more rest while d is on.
func (o *Outage) restOn(d *down) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now == d {
		o.cfg.Rest(restStep)
		d.rest.Reset(restEvery)
	}
}

func (o *Outage) endLocked() {
	d := o.now
	if d == nil {
		return
	}
	o.now = nil
	d.timer.Stop()
	if d.rest != nil {
		d.rest.Stop()
		o.cfg.Rest(0)
	}
	for p := range o.ports {
		p.bringUp(d)
	}
	close(d.over)
	o.log.Info("outage ended", zap.String("mode", string(d.spec.Mode)))
}

// current is the outage that is on, or nil, and a context that ends when the next one begins.
func (o *Outage) current() (*down, context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now, o.calm
}
