package agent

import (
	"cmp"
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"agentd/agent/exec"
	"agentd/agent/journal"
	"agentd/agent/protocol"
	"agentd/leasekeeper"
	"agentd/shipper"
)

// sweepTimeout bounds the search for what an earlier process left, so that polling begins within 5 s of a start.
const sweepTimeout = 3 * time.Second

// defaultTTL stands in for a link that names none: the protocol's default.
const defaultTTL = 10 * time.Second

// sweep ends what is left of the attempts of an earlier process of this agent. Before the first poll:
// the next attempt of the same job may come to us.
func (a *Agent) sweep(ctx context.Context, left []journal.Entry) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	var procs []exec.Proc
	for _, e := range left {
		if e.Proc.PID != 0 {
			procs = append(procs, exec.Proc(e.Proc))
		}
	}
	for _, s := range a.runner.Sweep(ctx, procs) {
		log := a.log.With(zap.Int("pid", s.Proc.PID), zap.Int("killed", s.Killed), zap.Bool("rebooted", s.Rebooted))
		if s.Err != nil {
			log.Error("something of an earlier attempt is left", zap.Error(s.Err))
			continue
		}
		log.Info("earlier attempt was swept")
	}
}

// noteLengths writes down how long the logs are that an earlier process left in memory, before the shipper moves them: by the
// next start they may all be in the spool, which can't say that nothing followed, and would then be taken for lost in part.
func (a *Agent) noteLengths(left []journal.Entry) {
	found := map[string]shipper.Recovered{}
	for _, r := range a.logs.Recovered() {
		found[key(r.Ref.JobID, r.Ref.Attempt)] = r
	}
	for i, e := range left {
		r := found[key(e.JobID, e.Attempt)]
		if !r.InMemory || e.Log.Closed {
			continue
		}
		left[i].Log = journal.LogState{Closed: true, Records: max(e.Log.Records, r.LogRecords)}
		if err := a.journal.SetLog(e.JobID, e.Attempt, left[i].Log); err != nil {
			a.log.Error("length of a log could not be written down", zap.String("job", e.JobID), zap.Error(err))
		}
	}
}

// settleLeft reports what an earlier process left behind, until it is settled or ctx ends.
func (a *Agent) settleLeft(ctx context.Context, left []journal.Entry) {
	found := map[string]shipper.Recovered{}
	for _, r := range a.logs.Recovered() {
		found[key(r.Ref.JobID, r.Ref.Attempt)] = r
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, e := range left {
		wg.Go(func() {
			defer a.update(func() { a.owed-- })
			select {
			case <-ctx.Done():
				return
			case <-a.link.ready:
			}
			a.settleEntry(ctx, e, found[key(e.JobID, e.Attempt)])
		})
	}
}

// settleEntry reports one outcome. While the report of a job that had ended waits, its lease is kept, if it
// still lives: a reaped one would be run again.
func (a *Agent) settleEntry(ctx context.Context, e journal.Entry, log shipper.Recovered) {
	if e.Completion == nil { // noteLost has seen to the others
		// It was accepted and never ran: another agent may as well begin.
		job := &protocol.Job{ID: e.JobID, Attempt: e.Attempt, LeaseToken: e.LeaseToken}
		a.giveBack(ctx, job, "the agent restarted before the job began")
		a.forget(e.JobID, e.Attempt)
		return
	}
	c := e.Completion
	if c.LogRecords = e.Log.Records; !e.Log.Closed {
		c.LogRecords = max(e.Log.Records, log.LogRecords)
	}
	if !log.InMemory {
		// A reboot empties the runtime directory, and a queue file can be lost. What had not left memory is gone: the log says so.
		a.logs.MemoryLost(e.Ref(), e.Log.Records)
	}
	if err := a.journal.SetCompletion(e.JobID, e.Attempt, *c); err != nil {
		a.log.Error("outcome could not be written down", zap.String("job", e.JobID), zap.Error(err))
	}
	a.log.Info("outcome of an earlier process was found", zap.String("job", e.JobID), zap.Int64("attempt", e.Attempt),
		zap.String("outcome", string(c.Outcome)), zap.Int64("records", c.LogRecords))
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, settled := context.WithCancel(ctx)
	defer settled()
	if c.Outcome != protocol.Lost { // which is to be run again, the sooner the better
		wg.Go(func() { a.keepLeft(ctx, e) })
	}
	a.settle(ctx, e.JobID, *c)
}

// keepLeft keeps the lease of an attempt that ended under an earlier process, until ctx ends or it is lost.
func (a *Agent) keepLeft(ctx context.Context, e journal.Entry) {
	a.link.mu.Lock()
	ttl := a.link.last.LeaseTTL.Duration()
	a.link.mu.Unlock()
	loop := "lease " + key(e.JobID, e.Attempt)
	defer a.pulse.end(loop)
	keeper, err := leasekeeper.New(leasekeeper.Config{
		Ref: e.Ref(), TTL: cmp.Or(ttl, defaultTTL), Sender: a.plane, Clock: a.clock, Logger: a.log,
		Alive: func(within time.Duration) { a.pulse.beat(loop, within) },
	})
	if err == nil {
		keeper.Reporting()
		err = keeper.Run(ctx, func(ctx context.Context) { <-ctx.Done() })
	}
	if err != nil && ctx.Err() == nil {
		a.log.Info("lease of an earlier attempt is gone, its outcome is reported all the same", zap.String("job", e.JobID), zap.Error(err))
	}
}
