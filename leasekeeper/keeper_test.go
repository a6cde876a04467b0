package leasekeeper

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
)

const ttl = 10 * time.Second

// kept runs a keeper on p until the returned stop; cause is closed over by the attempt's context.
type kept struct {
	k    *Keeper
	job  context.Context // set once accepted
	stop func() error    // lets the attempt return and waits for Run
}

func keepOn(t *testing.T, p *plane, cfg Config) *kept {
	t.Helper()
	n, ok := p.lease()
	if !ok {
		t.Fatal("job is not pending")
	}
	cfg.Ref = protocol.AttemptRef{JobID: "job_1", Attempt: n, LeaseToken: "t"}
	cfg.TTL, cfg.Sender, cfg.Clock = p.ttl, p, bubbleClock()
	k, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	out := &kept{k: k}
	release := make(chan struct{})
	var wg sync.WaitGroup
	var runErr error
	wg.Go(func() {
		runErr = k.Run(t.Context(), func(ctx context.Context) {
			out.job = ctx
			<-release
		})
	})
	synctest.Wait()
	if out.job == nil {
		t.Fatal("attempt has not started")
	}
	out.stop = func() error { close(release); wg.Wait(); return runErr }
	return out
}

func TestFirstHeartbeatAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		p.failWith(refused, 3)
		n, _ := p.lease()
		k, err := New(Config{Ref: protocol.AttemptRef{JobID: "j", Attempt: n}, TTL: ttl, Sender: p, Clock: bubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		if err := k.Run(t.Context(), func(context.Context) {
			calls++
			p.mu.Lock()
			defer p.mu.Unlock()
			for i, b := range p.beats {
				if b.wait != 0 || b.answered != (i == 3) {
					t.Errorf("heartbeat %d: wait %v answered %v before the job began; want 0, and only the 4th answered", i, b.wait, b.answered)
				}
			}
			if len(p.beats) != 4 || p.fresh != 3 {
				t.Errorf("%d heartbeats, %d on fresh connections; want 4 and 3", len(p.beats), p.fresh)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if calls != 1 {
			t.Errorf("attempt was called %d times, want 1", calls)
		}
	})
}

func TestOfferThatIsGoneNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		p.failWith(leaseLost, -1)
		k, err := New(Config{Ref: protocol.AttemptRef{JobID: "j", Attempt: 1}, TTL: ttl, Sender: p, Clock: bubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		err = k.Run(t.Context(), func(context.Context) { t.Error("started") })
		if _, ok := errors.AsType[*LeaseLost](err); !ok {
			t.Errorf("error %v, want LeaseLost", err)
		}
	})
}

func TestAcceptEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		p.setCut(true)
		k, err := New(Config{Ref: protocol.AttemptRef{JobID: "j", Attempt: 1}, TTL: ttl, Sender: p, Clock: bubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		draining := errors.New("draining")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(draining) })
		if err := k.Run(ctx, func(context.Context) { t.Error("started") }); !errors.Is(err, draining) {
			t.Errorf("error %v, want draining", err)
		}
	})
}

func TestHeldHeartbeatsFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		var late []time.Duration
		k := keepOn(t, p, Config{Beat: func(d time.Duration) { late = append(late, d) }})
		time.Sleep(30*time.Second + time.Millisecond)
		if err := k.stop(); err != nil {
			t.Fatal(err)
		}
		// the accept, and one every 3 s of hold, the last of them under way
		if got, want := len(p.beats), 12; got != want {
			t.Errorf("%d heartbeats in 30 s, want %d", got, want)
		}
		for _, d := range late {
			if d != 0 {
				t.Errorf("lateness %v, want 0", d)
			}
		}
	})
}

func TestServerThatCannotHoldIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		p.holds = false
		p.heartbeat = 2 * time.Second
		k := keepOn(t, p, Config{})
		time.Sleep(30*time.Second + time.Millisecond)
		if err := k.stop(); err != nil {
			t.Fatal(err)
		}
		// the accept, and one every 2 s from 0 to 30
		if got, want := len(p.beats), 17; got != want {
			t.Errorf("%d heartbeats in 30 s at a pace of 2 s, want %d", got, want)
		}
	})
}

func TestCancelEndsTheAttemptAtOnceAndHeartbeatsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		k := keepOn(t, p, Config{Grace: 7 * time.Second})
		time.Sleep(4 * time.Second)
		began := time.Now()
		p.askCancel("not needed", 2*time.Second)
		<-k.job.Done()
		if took := time.Since(began); took > 0 {
			t.Errorf("the cancel took %v through a held heartbeat, want none", took)
		}
		c, ok := errors.AsType[*Cancelled](context.Cause(k.job))
		if !ok || c.Reason != "not needed" || c.Grace != 2*time.Second || k.k.GraceFor(c) != 2*time.Second {
			t.Errorf("cause %v, want Cancelled{not needed, 2s}", context.Cause(k.job))
		}
		p.mu.Lock()
		before := len(p.beats)
		p.mu.Unlock()
		time.Sleep(30 * time.Second)
		p.mu.Lock()
		after := len(p.beats)
		p.mu.Unlock()
		live := p.live()
		if got := after - before; got != 10 {
			t.Errorf("%d heartbeats in the 30 s after the cancel, want 10: one every heartbeatMs", got)
		}
		if !live {
			t.Error("the lease ran out while the job used its grace period")
		}
		if err := k.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestLeaseLostEndsTheAttempt(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlane(ttl)
			k := keepOn(t, p, Config{Exclusive: exclusive, Grace: 4 * time.Second})
			time.Sleep(4 * time.Second)
			p.mu.Lock()
			p.attempt = 0
			p.changedLocked()
			p.mu.Unlock()
			<-k.job.Done()
			cause := context.Cause(k.job)
			if causeName(cause) != "leaseLost" {
				t.Errorf("cause %v, want LeaseLost", cause)
			}
			want := map[bool]time.Duration{false: 4 * time.Second, true: 0}[exclusive]
			if got := k.k.GraceFor(cause); got != want {
				t.Errorf("exclusive=%v: grace %v, want %v", exclusive, got, want)
			}
			n := len(p.sent())
			time.Sleep(time.Minute)
			if got := len(p.sent()); got != n {
				t.Errorf("%d heartbeats after lease_lost, want none", got-n)
			}
			if err := k.stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestCallersCauseEndsTheAttemptButNotTheHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		n, _ := p.lease()
		k, err := New(Config{Ref: protocol.AttemptRef{JobID: "j", Attempt: n}, TTL: ttl, Sender: p, Clock: bubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		draining := errors.New("draining")
		ctx, drain := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { drain(draining) })
		if err := k.Run(ctx, func(job context.Context) {
			<-job.Done()
			if !errors.Is(context.Cause(job), draining) {
				t.Errorf("cause %v, want draining", context.Cause(job))
			}
			time.Sleep(time.Minute) // the completion takes its time
		}); err != nil {
			t.Fatal(err)
		}
		if !p.live() {
			t.Error("the lease ran out while the completion waited")
		}
	})
}

func TestRevokedEndsTheAttemptWhenTheWindowCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		k := keepOn(t, p, Config{Grace: 2 * time.Second})
		time.Sleep(4 * time.Second)
		p.failWith(revoked, -1)
		began := time.Now()
		<-k.job.Done()
		if causeName(context.Cause(k.job)) != "leaseExpired" {
			t.Errorf("cause %v, want LeaseExpired", context.Cause(k.job))
		}
		if took := time.Since(began); took > ttl {
			t.Errorf("ended %v after the revocation, want within the TTL", took)
		}
		if err := k.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRetryAfterNeverPausesHeartbeatsPastAThirdOfTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		k := keepOn(t, p, Config{})
		time.Sleep(4 * time.Second)
		p.failWith(&protocol.Error{Op: "heartbeat", Status: 429, Code: protocol.CodeThrottled, RetryAfter: 10 * time.Minute}, 5)
		time.Sleep(30 * time.Second)
		beats := p.sent()
		for i := 1; i < len(beats); i++ {
			if gap := beats[i].at.Sub(beats[i-1].at); gap > ttl/3 {
				t.Errorf("heartbeats %d and %d are %v apart, want at most %v", i-1, i, gap, ttl/3)
			}
		}
		if !p.live() {
			t.Error("the lease ran out")
		}
		if err := k.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestLatenessCountsFromTheFirstMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		var worst time.Duration
		k := keepOn(t, p, Config{Beat: func(d time.Duration) { worst = max(worst, d) }})
		time.Sleep(4 * time.Second)
		p.setCut(true)
		time.Sleep(20 * time.Second)
		p.setCut(false)
		time.Sleep(10 * time.Second)
		if err := k.stop(); err != nil {
			t.Fatal(err)
		}
		// the heartbeat that was under way was due within 3 s of the cut, and heard of at the latest 2 s + 3.4 s after it
		if worst < 17*time.Second || worst > 26*time.Second {
			t.Errorf("lateness %v for an outage of 20 s, want 17 s to 26 s", worst)
		}
	})
}

func TestTTLOfTheAnswersCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		k := keepOn(t, p, Config{Exclusive: true})
		p.mu.Lock()
		p.ttl = time.Minute
		p.mu.Unlock()
		time.Sleep(10 * time.Second)
		p.setCut(true)
		time.Sleep(45 * time.Second) // far beyond the offer's TTL, within the new one's budget
		if err := context.Cause(k.job); err != nil {
			t.Errorf("ended with %v, want to go on: the server stretched the TTL to a minute", err)
		}
		time.Sleep(20 * time.Second)
		if causeName(context.Cause(k.job)) != "leaseExpired" {
			t.Errorf("cause %v, want LeaseExpired", context.Cause(k.job))
		}
		if err := k.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSleepingMachineSeesTheClosedWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(ttl)
		n, _ := p.lease()
		var asleep time.Duration // guarded by mu
		var mu sync.Mutex
		clock := bubbleClock()
		k, err := New(Config{Ref: protocol.AttemptRef{JobID: "j", Attempt: n}, TTL: ttl, Exclusive: true, Grace: 3 * time.Second, Sender: p,
			Clock: func() time.Duration { mu.Lock(); defer mu.Unlock(); return clock() + asleep }})
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Run(t.Context(), func(job context.Context) {
			time.Sleep(2 * time.Second)
			p.setCut(true)
			mu.Lock()
			asleep = time.Hour // Go's timers stood still
			mu.Unlock()
			woke := time.Now()
			<-job.Done()
			if took := time.Since(woke); took > guardTick {
				t.Errorf("seen %v after the wake-up, want within %v", took, guardTick)
			}
			e, ok := errors.AsType[*LeaseExpired](context.Cause(job))
			if !ok || e.Grace != 0 {
				t.Errorf("cause %+v, want LeaseExpired with no grace left", context.Cause(job))
			}
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestConfigNamesAllFaults(t *testing.T) {
	_, err := New(Config{Grace: -1})
	want := "leasekeeper: ref.jobID is missing\nttl must be positive, not 0s\ngrace must not be negative, not -1ns\nsender is missing"
	if err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}
