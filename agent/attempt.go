package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"agentd/agent/journal"
	"agentd/agent/protocol"
	"agentd/leasekeeper"
)

// releaseTimeout bounds a release: it is a favour to the server, whose lease would lapse anyway.
const releaseTimeout = 5 * time.Second

// faultPause is long enough for another agent to take the job, and for a log line per try to be bearable.
const faultPause = 10 * time.Second

// errReplaced ends an attempt whose job was offered anew: its own lease is gone, even if no heartbeat has said so yet.
var errReplaced = errors.New("the job was offered anew")

// attempt brings one offer to its end. The slot was taken by demand.
func (a *Agent) attempt(take, work, deliver context.Context, job *protocol.Job) {
	log := a.log.With(zap.String("job", job.ID), zap.Int64("attempt", job.Attempt))
	ctx, end := context.WithCancelCause(work)
	defer end(nil)
	r := &record{job: job, since: time.Now(), end: end, over: make(chan struct{}), state: "offered"}
	var once sync.Once
	over := func() { once.Do(func() { close(r.over); a.freeSlot() }) }
	defer over()

	older, entered := a.enter(r)
	if !entered { // the protocol rules it out; to begin it twice, or to release it while it runs, would be worse than to say nothing
		log.Error("attempt that is under way here was offered again, offer was ignored")
		return
	}
	if older != nil {
		log.Warn("job was offered anew while an attempt of it runs here", zap.Int64("older", older.job.Attempt))
		older.end(&leasekeeper.LeaseLost{Err: errReplaced})
		select {
		case <-older.over:
		case <-take.Done():
		}
	}
	defer a.leave(r)

	a.mu.Lock()
	handler, ok := a.handlers[job.Type]
	drained := a.drained
	a.mu.Unlock()
	if !ok || drained || take.Err() != nil {
		a.giveBack(work, job, map[bool]string{true: "draining", false: "no handler for type " + job.Type}[ok])
		return
	}
	loop := "lease " + key(job.ID, job.Attempt)
	defer a.pulse.end(loop)
	keeper, err := leasekeeper.New(leasekeeper.Config{
		Ref: ref(job), TTL: job.LeaseTTL.Duration(), Exclusive: job.Exclusive, Grace: handler.Grace(job),
		Sender: a.plane, Clock: a.clock, Logger: a.log,
		Backlog: func() (int64, time.Duration) { return a.logs.Backlog(job.ID, job.Attempt) },
		Beat:    a.noteLateness,
		Alive:   func(within time.Duration) { a.pulse.beat(loop, within) },
	})
	if err != nil { // only a server that offers nonsense gets here
		log.Error("offer was not understood", zap.Error(err))
		a.giveBack(work, job, err.Error())
		return
	}
	// Until it was accepted an offer ends with the taking of work; after that with the doing.
	started := context.AfterFunc(take, func() { end(ErrDraining) })
	defer started()
	err = keeper.Run(ctx, func(ctx context.Context) {
		if !started() {
			a.giveBack(work, job, "draining")
			return
		}
		a.work(ctx, deliver, r, handler, keeper, over)
	})
	switch {
	case err == nil:
	case ctx.Err() != nil:
		a.giveBack(work, job, "draining")
	default:
		log.Info("offer was gone before it was accepted", zap.Error(err))
	}
}

func ref(job *protocol.Job) protocol.AttemptRef {
	return protocol.AttemptRef{JobID: job.ID, Attempt: job.Attempt, LeaseToken: job.LeaseToken}
}

// work runs an accepted attempt and reports its outcome. It returns when that is settled, or deliver ends.
func (a *Agent) work(ctx, deliver context.Context, r *record, h Handler, keeper *leasekeeper.Keeper, over func()) {
	job := r.job
	log := a.log.With(zap.String("job", job.ID), zap.Int64("attempt", job.Attempt), zap.String("type", job.Type))
	// The journal knows of it before anything of it exists.
	if err := a.journal.Begin(journal.Entry{
		JobID: job.ID, Attempt: job.Attempt, LeaseToken: job.LeaseToken, Type: job.Type, Exclusive: job.Exclusive,
		BootID: a.bootID, AcceptedAt: time.Now(),
	}); err != nil {
		log.Error("journal could not take the attempt", zap.Error(err))
		a.rest()
		a.giveBack(ctx, job, "the agent's journal failed")
		return
	}
	out, err := a.logs.Open(ref(job))
	if err != nil {
		log.Error("log could not be opened", zap.Error(err))
		a.rest()
		a.giveBack(ctx, job, "the agent could not open the log")
		a.forget(job.ID, job.Attempt)
		return
	}
	a.update(func() { r.state = "running" })
	log.Info("attempt was started")
	secrets, names := a.secretsOf()
	res := a.handle(ctx, h, &Attempt{Job: job, Hurry: a.hurry, agent: a, log: out, keeper: keeper, secrets: secrets, secretVars: names})
	records := out.Close()
	over()

	if lost, ok := errors.AsType[*leasekeeper.LeaseLost](res.Cause); ok {
		// Someone else's by now: no completion, but the log still says where it ends.
		log.Warn("attempt was ended, its lease is lost", zap.Error(lost.Err))
		a.logs.Final(ref(job))
		a.forget(job.ID, job.Attempt)
		return
	}
	c := completion(job, res)
	c.LogRecords = records
	a.update(func() { r.state = "reporting" })
	log.Info("attempt ended", zap.String("outcome", string(c.Outcome)), zap.Int("exit_code", c.ExitCode),
		zap.String("error", c.Error), zap.Int64("records", records), zap.Duration("took", res.FinishedAt.Sub(res.StartedAt)))
	if err := errors.Join(
		a.journal.SetLog(job.ID, job.Attempt, journal.LogState{Closed: true, Records: records}),
		a.journal.SetCompletion(job.ID, job.Attempt, c),
	); err != nil {
		log.Error("outcome could not be written down, a crash before its report would lose it", zap.Error(err))
	}
	keeper.Reporting()
	a.settle(deliver, job.ID, c)
}

// handle runs the handler; a panic of it is the attempt's failure, not the agent's.
func (a *Agent) handle(ctx context.Context, h Handler, at *Attempt) (res Result) {
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			a.log.Error("handler panicked", zap.String("job", at.Job.ID), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			res = Result{Outcome: protocol.Failed, ExitCode: 1, Error: fmt.Sprintf("handler panicked: %v", p)}
		}
		if res.StartedAt.IsZero() {
			res.StartedAt = began
		}
		if res.FinishedAt.IsZero() {
			res.FinishedAt = time.Now()
		}
		if res.Outcome == "" {
			res.Outcome = protocol.Succeeded
		}
		// A handler that ended because it had to says so, or we do. One that ended well had done its work already.
		if cause := context.Cause(ctx); res.Cause == nil && cause != nil && res.Outcome != protocol.Succeeded {
			res.Cause = cause
		}
	}()
	return h.Run(ctx, at)
}

// completion puts a result into the protocol's words.
func completion(job *protocol.Job, res Result) protocol.Completion {
	c := protocol.Completion{
		Attempt: job.Attempt, LeaseToken: job.LeaseToken, Outcome: res.Outcome, ExitCode: res.ExitCode, Signal: res.Signal,
		Error: res.Error, Result: res.JSON, StartedAt: res.StartedAt, FinishedAt: res.FinishedAt,
	}
	if res.Outcome == protocol.Succeeded || res.Outcome == protocol.TimedOut || res.Cause == nil {
		return c
	}
	if cancelled, ok := errors.AsType[*leasekeeper.Cancelled](res.Cause); ok {
		c.Outcome = protocol.Cancelled
		c.Error = cancelled.Error()
		return c
	}
	switch {
	case errors.Is(res.Cause, ErrDraining):
		c.Outcome, c.Error = protocol.Lost, "the agent was stopped (drain) before the job ended"
	default:
		if expired, ok := errors.AsType[*leasekeeper.LeaseExpired](res.Cause); ok {
			c.Outcome, c.Error = protocol.Lost, expired.Error()
		}
	}
	return c
}

// noteExit writes the outcome down as soon as the processes have ended: the log may still be read for a
// while, and if the agent dies meanwhile the job isn't run again.
func (a *Agent) noteExit(at *Attempt, res Result) {
	if _, ok := errors.AsType[*leasekeeper.LeaseLost](res.Cause); ok {
		return
	}
	c := completion(at.Job, res)
	if err := a.journal.SetCompletion(at.Job.ID, at.Job.Attempt, c); err != nil {
		a.log.Error("outcome could not be written down", zap.String("job", at.Job.ID), zap.Error(err))
	}
}

// giveBack releases an offer, or an accepted job that has not started.
func (a *Agent) giveBack(ctx context.Context, job *protocol.Job, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	a.release(ctx, job, reason)
}

// rest keeps the agent from asking for a while: what it gives back for a fault of its own would be offered to it again at once.
func (a *Agent) rest() { a.update(func() { a.pause = time.Now().Add(faultPause) }) }

// enter puts the attempt on the books, unless it is there already, and returns an older attempt of the same job that still is.
func (a *Agent) enter(r *record) (older *record, entered bool) {
	k := key(r.job.ID, r.job.Attempt)
	a.update(func() {
		if a.attempts[k] != nil {
			return
		}
		entered = true
		for _, o := range a.attempts {
			if o.job.ID == r.job.ID && o.state != "reporting" {
				older = o
			}
		}
		a.attempts[k] = r
	})
	return older, entered
}

func (a *Agent) leave(r *record) {
	a.update(func() { delete(a.attempts, key(r.job.ID, r.job.Attempt)) })
}
