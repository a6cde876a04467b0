package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Run works until ctx ends, then drains as the package comment says. It returns nil after an orderly
// stop, or the fault of the part that ended by itself.
func (a *Agent) Run(ctx context.Context) error {
	var fault error // of the first part that failed; guarded by failed
	var failed sync.Once
	take, stopTaking := context.WithCancel(ctx)
	defer stopTaking()
	fail := func(part string, err error) {
		if err != nil && !errors.Is(err, context.Canceled) {
			failed.Do(func() { fault = fmt.Errorf("agent: %s: %w", part, err) })
			a.log.Error("part failed", zap.String("part", part), zap.Error(err))
		}
		stopTaking()
	}
	base := context.WithoutCancel(ctx)
	work, stopWork := context.WithCancelCause(base)
	defer stopWork(nil)
	deliver, stopDelivering := context.WithCancel(base)
	defer stopDelivering()
	rest, stopRest := context.WithCancel(base)
	defer stopRest()

	left := a.journal.Entries()
	a.update(func() { a.began, a.owed = time.Now(), len(left) })
	a.ident.Announce(a.info()) // New knew no handlers yet
	a.noteLost(left, a.before())
	a.sweep(work, left)
	a.noteLengths(left)

	var parts, jobs sync.WaitGroup
	parts.Go(func() { fail("identity", a.ident.Run(rest)) })
	parts.Go(func() { fail("logs", a.logs.Run(rest)) })
	jobs.Go(func() { a.settleLeft(deliver, left) })
	jobs.Go(func() { a.poll(take, work, deliver) })
	jobs.Go(func() {
		if err := a.answerQueries(take, work); err != nil { // it ends at once where there are none
			fail("queries", err)
		}
	})

	<-take.Done()
	a.update(func() { a.stopping = true })
	a.log.Info("stopping", zap.Int("running", a.active()), zap.Duration("timeout", a.cfg.Drain.Timeout))
	a.waitFor(a.cfg.Drain.Timeout, func() bool { return a.active() == 0 })
	if n := a.active(); n > 0 {
		a.log.Warn("jobs were ended by the stop", zap.Int("running", n))
		stopWork(ErrDraining)
		// The runner's own bounds end this one: grace, then SIGKILL, then what can't be killed is left and told.
		a.mustWait(a.cfg.Drain.Grace+killSlack, func() bool { return a.active() == 0 })
	}
	flushing := time.Now()
	a.waitFor(a.cfg.Drain.Flush, func() bool { return a.unsettled() == 0 })
	a.flush(base, a.cfg.Drain.Flush-time.Since(flushing))
	stopDelivering()
	jobs.Wait()
	stopRest() // the rest of the logs goes to the disk, synced, whatever the hurry
	parts.Wait()
	a.log.Info("stopped", zap.Int("unsettled", len(a.journal.Entries())))
	return fault
}

// waitFor waits until done, for at most d, or until Hurry.
func (a *Agent) waitFor(d time.Duration, done func() bool) { a.await(d, a.hurry, done) }

// mustWait is waitFor that no hurry shortens.
func (a *Agent) mustWait(d time.Duration, done func() bool) { a.await(d, nil, done) }

func (a *Agent) await(d time.Duration, hurry <-chan struct{}, done func() bool) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	for {
		changed := a.changes()
		if done() {
			return
		}
		select {
		case <-changed:
		case <-hurry:
			return
		case <-timer.C:
			return
		}
	}
}

// flush gives the logs up to d to be acknowledged.
func (a *Agent) flush(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, max(d, 0))
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		select {
		case <-a.hurry:
			cancel()
		case <-ctx.Done():
		}
	})
	if err := a.logs.Flush(ctx); err != nil {
		a.log.Info("logs are left to the next start", zap.Error(err))
	}
	cancel()
}

// Drain makes the agent take no more jobs (or, with on false, take them again): the poll under way is broken off, and an offer
// that still arrives is released. Running jobs go on, without a limit.
func (a *Agent) Drain(on bool) {
	a.update(func() {
		a.drained = on
		if on && a.enough != nil {
			a.enough()
		}
	})
	a.log.Info("drain was asked for", zap.Bool("on", on))
}

// WaitDrained waits until nothing runs, no poll can bring anything, all outcomes are settled and all logs are acknowledged.
func (a *Agent) WaitDrained(ctx context.Context) error {
	for {
		changed := a.changes()
		if a.active() == 0 && a.unsettled() == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
	return a.logs.Flush(ctx)
}
