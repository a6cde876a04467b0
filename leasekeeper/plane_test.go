package leasekeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"agentd/agent/protocol"
)

// plane is the server's side of one job's leases, as protocol §3 has it: renewals at arrival and at the
// end of the hold, a reaper, attempts that follow each other. The network between it and the
// keeper's agent can be cut; a cut swallows requests and answers, and tells nobody.
type plane struct {
	ttl       time.Duration
	heartbeat time.Duration
	holds     bool // false: answers every heartbeat at once

	mu       sync.Mutex
	changed  chan struct{} // closed and renewed at each change
	attempt  int64         // the attempt that holds the lease; 0 = none, the job is pending
	used     int64         // attempt numbers given out
	deadline time.Time
	cancel   *protocol.Cancel
	cut      bool
	fail     error // answered to every heartbeat
	failN    int   // how many times; -1 = without end
	beats    []beat
	fresh    int
	leased   []time.Time // when attempt n+1 was leased
	reaped   []time.Time
}

type beat struct {
	at       time.Time
	wait     time.Duration
	answered bool
}

func newPlane(ttl time.Duration) *plane {
	return &plane{ttl: ttl, heartbeat: ttl * 3 / 10, holds: true, changed: make(chan struct{})}
}

func (p *plane) changedLocked() { close(p.changed); p.changed = make(chan struct{}) }

// lease offers the job if it is pending.
func (p *plane) lease() (attempt int64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attempt != 0 {
		return 0, false
	}
	p.used++
	p.attempt, p.deadline = p.used, time.Now().Add(p.ttl)
	p.leased = append(p.leased, time.Now())
	return p.used, true
}

// reap ends the attempt whose lease ran out, every quarter TTL, until ctx ends.
func (p *plane) reap(ctx context.Context) {
	for sleep(ctx, p.ttl/4) {
		p.mu.Lock()
		if p.attempt != 0 && !time.Now().Before(p.deadline) {
			p.attempt = 0
			p.reaped = append(p.reaped, time.Now())
			p.changedLocked()
		}
		p.mu.Unlock()
	}
}

func (p *plane) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	p.changedLocked()
}

func (p *plane) askCancel(reason string, grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel = &protocol.Cancel{Reason: reason, Grace: protocol.ToMillis(grace)}
	p.changedLocked()
}

func (p *plane) failWith(err error, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail, p.failN = err, n
}

// live says whether the attempt's lease has not run out.
func (p *plane) live() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.deadline)
}

func (p *plane) sent() []beat {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.beats)
}

func (p *plane) FreshHeartbeats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fresh++
}

func (p *plane) Heartbeat(ctx context.Context, _ string, wait time.Duration, req protocol.HeartbeatRequest) (protocol.Heartbeat, error) {
	p.mu.Lock()
	i := len(p.beats)
	p.beats = append(p.beats, beat{at: time.Now(), wait: wait})
	if p.cut {
		p.mu.Unlock()
		<-ctx.Done()
		return protocol.Heartbeat{}, &protocol.Error{Op: "heartbeat", Err: ctx.Err()}
	}
	if p.failN != 0 {
		p.failN--
		err := p.fail
		p.mu.Unlock()
		return protocol.Heartbeat{}, err
	}
	p.mu.Unlock()

	hb, err := p.serve(ctx, wait, req.Attempt)
	p.mu.Lock()
	cut := p.cut
	p.beats[i].answered = !cut && err == nil
	p.mu.Unlock()
	if cut { // the server did all of this, and nobody hears of it
		<-ctx.Done()
		return protocol.Heartbeat{}, &protocol.Error{Op: "heartbeat", Err: ctx.Err()}
	}
	return hb, err
}

func (p *plane) serve(ctx context.Context, wait time.Duration, attempt int64) (protocol.Heartbeat, error) {
	end := time.Now().Add(min(wait, p.ttl/3))
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.attempt != attempt {
			return protocol.Heartbeat{}, leaseLost
		}
		p.deadline = time.Now().Add(p.ttl)
		left := time.Until(end)
		if !p.holds || p.cancel != nil || left <= 0 {
			return protocol.Heartbeat{LeaseTTL: protocol.ToMillis(p.ttl), Heartbeat: protocol.ToMillis(p.heartbeat), Cancel: p.cancel}, nil
		}
		changed, cut := p.changed, p.cut
		p.mu.Unlock()
		t := time.NewTimer(left)
		gone := ctx.Done()
		if cut {
			gone = nil // a server behind a cut doesn't see the client go
		}
		select {
		case <-gone:
		case <-changed:
		case <-t.C:
		}
		t.Stop()
		p.mu.Lock()
		if ctx.Err() != nil && !p.cut {
			return protocol.Heartbeat{}, &protocol.Error{Op: "heartbeat", Err: ctx.Err()}
		}
	}
}

var (
	leaseLost = &protocol.Error{Op: "heartbeat", Status: 409, Code: protocol.CodeLeaseLost}
	refused   = &protocol.Error{Op: "heartbeat", Err: errors.New("connection refused")}
	revoked   = &protocol.Error{Op: "heartbeat", Status: 403, Code: protocol.CodeRevoked}
)

// bubbleClock is the Clock of tests: synctest fakes time.Now, not CLOCK_BOOTTIME.
func bubbleClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

func causeName(err error) string {
	switch err.(type) { //nolint:errorlint // causes are set as they are
	case nil:
		return "none"
	case *Cancelled:
		return "cancelled"
	case *LeaseLost:
		return "leaseLost"
	case *LeaseExpired:
		return "leaseExpired"
	}
	return fmt.Sprintf("%T", err)
}
