package leasekeeper

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.uber.org/zap"

	"agentd/agent/protocol"
)

// Keeper keeps one lease. Use it for one Run.
type Keeper struct {
	cfg Config
	log *zap.Logger

	mu        sync.Mutex
	sent      time.Duration // guarded by mu: when the last answered heartbeat was sent, on cfg.Clock
	ttl       time.Duration // guarded by mu: the server's last word
	heartbeat time.Duration // guarded by mu: the server's last word; 0 = none yet
	lastErr   error         // guarded by mu: why the last heartbeat was missed; nil = it wasn't
	reporting bool          // guarded by mu: the outcome is on its way
}

// New returns a keeper for one offer.
func New(cfg Config) (*Keeper, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Keeper{
		cfg: cfg,
		log: cfg.Logger.With(zap.String("job", cfg.Ref.JobID), zap.Int64("attempt", cfg.Ref.Attempt)),
		ttl: cfg.TTL,
	}, nil
}

// Run accepts the offer, calls attempt once the first heartbeat was answered, and keeps the lease
// until attempt returns: that is after the completion was acknowledged, so that a finished job isn't reaped while
// its report waits. The context that attempt gets ends with a cause: *Cancelled, *LeaseLost,
// *LeaseExpired, or that of ctx.
//
// It returns an error only if attempt was never called: *LeaseLost when the server said that the offer is
// gone, or the cause of ctx, which may mean that the server has accepted without our knowing; a
// release is due then.
func (k *Keeper) Run(ctx context.Context, attempt func(context.Context)) error {
	if err := k.accept(ctx); err != nil {
		return err
	}
	job, end := context.WithCancelCause(ctx)
	defer end(nil)
	// Heartbeats outlive ctx: a job that drains keeps its lease until its report has arrived.
	beats, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { k.keep(beats, end) })
	if k.cfg.Exclusive {
		wg.Go(func() { k.guard(beats, end) })
	}
	attempt(job)
	return nil
}

// Reporting says that the attempt's outcome is being reported: from now on the end of its lease is no
// news. The server answers the held heartbeat with lease_lost in the moment that it takes the report.
func (k *Keeper) Reporting() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reporting = true
}

func (k *Keeper) isReporting() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reporting
}

// accept sends the first heartbeat until it is answered. There is no giving up while ctx lives: if the answer
// got lost, the attempt is accepted, and only another heartbeat finds out.
func (k *Keeper) accept(ctx context.Context) error {
	misses := k.newMisses()
	for {
		_, err := k.beat(ctx, 0, &misses)
		switch {
		case err == nil:
			return nil
		case lost(err):
			return &LeaseLost{Err: err}
		case ctx.Err() != nil:
			return fmt.Errorf("leasekeeper: offer not accepted: %w", context.Cause(ctx))
		}
		if !sleep(ctx, misses.pause(k.current(), err)) {
			return fmt.Errorf("leasekeeper: offer not accepted: %w", context.Cause(ctx))
		}
	}
}

// keep sends heartbeats until ctx ends or the server says that the lease is lost.
func (k *Keeper) keep(ctx context.Context, end context.CancelCauseFunc) {
	misses := k.newMisses()
	cancelled := false
	for ctx.Err() == nil {
		w := k.current()
		hold := w.hold(k.cfg.Exclusive)
		if cancelled || misses.count > 0 {
			hold = 0 // after a miss the answer is wanted at once: each one moves the window
		}
		began := k.cfg.Clock()
		hb, err := k.beat(ctx, hold, &misses)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if hb.Cancel != nil && !cancelled {
				cancelled = true
				k.log.Info("cancel was asked for", zap.String("reason", hb.Cancel.Reason))
				end(&Cancelled{Reason: hb.Cancel.Reason, Grace: hb.Cancel.Grace.Duration()})
			}
			// A held answer is followed by the next heartbeat at once. One that came early was
			// not held (after a cancel, or the server can't): then the agent paces itself.
			if took := k.cfg.Clock() - began; hold == 0 || took < hold/2 {
				sleep(ctx, k.pace()-took)
			}
		case lost(err):
			if !k.isReporting() {
				k.log.Warn("lease was lost", zap.Error(err))
			}
			end(&LeaseLost{Err: err})
			return
		default:
			if protocol.CodeOf(err) == protocol.CodeRevoked {
				k.endIfClosing(end) // "running jobs go on until their lease runs out"
			}
			sleep(ctx, misses.pause(w, err))
		}
	}
}

// beat sends one heartbeat and takes note of its answer.
func (k *Keeper) beat(ctx context.Context, hold time.Duration, misses *misses) (protocol.Heartbeat, error) {
	w := k.current()
	limit := hold + w.answer(k.cfg.Exclusive, misses.count)
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	k.cfg.Alive(limit + w.ttl/3) // and then a pause or a pace of at most that
	bytes, oldest := k.cfg.Backlog()
	sent := k.cfg.Clock()
	hb, err := k.cfg.Sender.Heartbeat(call, k.cfg.Ref.JobID, hold, protocol.HeartbeatRequest{
		Attempt: k.cfg.Ref.Attempt, LeaseToken: k.cfg.Ref.LeaseToken,
		SpooledBytes: bytes, OldestUnshipped: protocol.ToMillis(oldest),
	})
	if err == nil {
		k.answered(sent, hb)
		k.cfg.Beat(misses.answered(k, sent+hold))
		return hb, nil
	}
	if ctx.Err() == nil && !lost(err) {
		misses.missed(k, sent+hold, err)
	}
	return hb, err
}

func (k *Keeper) answered(sent time.Duration, hb protocol.Heartbeat) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sent, k.lastErr = sent, nil
	if hb.LeaseTTL > 0 {
		k.ttl = hb.LeaseTTL.Duration()
	}
	k.heartbeat = hb.Heartbeat.Duration()
}

// guard ends an exclusive attempt in time for its grace and the kill to fit before the window closes.
func (k *Keeper) guard(ctx context.Context, end context.CancelCauseFunc) {
	for {
		left := k.endIfClosing(end)
		if left <= 0 || !sleep(ctx, min(left, guardTick)) {
			return
		}
	}
}

// endIfClosing returns the time until the attempt must be told to end; it does so when that is over.
func (k *Keeper) endIfClosing(end context.CancelCauseFunc) time.Duration {
	k.mu.Lock()
	w, sent, lastErr := newWindow(k.ttl, k.cfg.Grace), k.sent, k.lastErr
	k.mu.Unlock()
	silence := k.cfg.Clock() - sent
	left := w.budget() - silence
	if left > 0 {
		return left
	}
	// Seen late (the machine slept, the TTL shrank): the grace pays for it, not the next owner.
	e := &LeaseExpired{Silence: silence, Grace: max(0, w.grace+left), Err: lastErr}
	k.log.Warn("lease expired", zap.Duration("silence", silence), zap.Duration("grace", e.Grace), zap.Error(lastErr))
	end(e)
	return 0
}

func (k *Keeper) current() window {
	k.mu.Lock()
	defer k.mu.Unlock()
	return newWindow(k.ttl, k.cfg.Grace)
}

func (k *Keeper) pace() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return newWindow(k.ttl, k.cfg.Grace).pace(k.heartbeat, k.cfg.Exclusive)
}

// graceLocked is called with mu held.
func (k *Keeper) graceLocked() time.Duration {
	if k.cfg.Exclusive {
		return newWindow(k.ttl, k.cfg.Grace).grace
	}
	return k.cfg.Grace
}

// misses counts the heartbeats in a row that got no answer. It belongs to one loop.
type misses struct {
	count   int
	due     time.Duration // when the answer to the first of them was due
	backOff backoff.BackOff
}

func (k *Keeper) newMisses() misses {
	return misses{backOff: protocol.NewBackOff(k.current().pause(k.cfg.Exclusive))}
}

func (m *misses) missed(k *Keeper, due time.Duration, err error) {
	k.mu.Lock()
	k.lastErr = err
	k.mu.Unlock()
	k.cfg.Sender.FreshHeartbeats()
	if m.count++; m.count == 1 {
		m.due = due
		k.log.Warn("heartbeat was missed", zap.Error(err))
	}
}

// answered returns the lateness: how long after the first moment at which an answer was due it came.
func (m *misses) answered(k *Keeper, due time.Duration) time.Duration {
	if m.count > 0 {
		due = m.due
	}
	late := max(0, k.cfg.Clock()-due)
	if m.count > 0 {
		k.log.Info("heartbeat was answered again", zap.Int("missed", m.count), zap.Duration("late", late))
		m.count = 0
		m.backOff.Reset()
	}
	return late
}

// pause is the time until the next try: full jitter, or what the server asked for; heartbeats
// never pause longer than a third of the TTL.
func (m *misses) pause(w window, err error) time.Duration {
	if after, ok := protocol.RetryAfter(err); ok {
		return min(after, w.ttl/3)
	}
	return min(m.backOff.NextBackOff(), w.ttl/3)
}

// sleep waits and says whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
