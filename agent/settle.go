package agent

import (
	"context"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
)

const (
	// completeTimeout is beyond the client's own deadline for a call; a loop that outlives it is deaf.
	completeTimeout = time.Minute
	// askAgain is how often an agent that was revoked asks whether that has changed (protocol §1).
	askAgain = 5 * time.Minute
)

// settle reports an outcome until the server has settled it, and forgets it then. If ctx ends first
// the journal keeps it for the next start.
func (a *Agent) settle(ctx context.Context, jobID string, c protocol.Completion) {
	log := a.log.With(zap.String("job", jobID), zap.Int64("attempt", c.Attempt), zap.String("outcome", string(c.Outcome)))
	loop := "completion " + key(jobID, c.Attempt)
	defer a.pulse.end(loop)
	backOff := protocol.NewBackOff(0)
	began := time.Now()
	for failed := 0; ; failed++ {
		a.pulse.beat(loop, completeTimeout)
		err := a.plane.Complete(ctx, jobID, c)
		if ctx.Err() != nil && err != nil {
			return
		}
		pause := time.Duration(0)
		switch protocol.ActionFor(err) {
		case protocol.Proceed:
			if failed > 0 {
				log.Info("completion was acknowledged", zap.Int("failed", failed), zap.Duration("after", time.Since(began)))
			}
			a.forget(jobID, c.Attempt)
			return
		case protocol.LeaseOver:
			// The server has settled it otherwise: reaped, or an earlier report of ours arrived and the job went on.
			log.Info("completion came too late", zap.Error(err))
			a.forget(jobID, c.Attempt)
			return
		case protocol.Orphan:
			log.Warn("completion was dropped, the server doesn't know the job", zap.Error(err))
			a.forget(jobID, c.Attempt)
			return
		case protocol.Bisect, protocol.Halve:
			// Never the same request again. What a job chose may be at fault: its result, its error.
			if c.Result == nil && c.Error == refusedError {
				log.Error("completion was refused for good", zap.Error(err))
				a.forget(jobID, c.Attempt)
				return
			}
			log.Error("completion was refused, sent again without its result", zap.Error(err))
			c.Result, c.Error = nil, refusedError
			continue
		case protocol.StopRevoked:
			a.ident.Report(err)
			pause = askAgain
		case protocol.RetrySlow:
			pause = protocol.LongestBackOff
		default:
		}
		if failed == 0 {
			log.Warn("completion was not acknowledged", zap.Error(err))
		}
		a.pulse.beat(loop, pause+waitFor(err)+protocol.LongestBackOff)
		if pause > 0 && !a.sleep(ctx, pause) {
			return
		}
		if protocol.Pause(ctx, backOff, err) != nil {
			return
		}
	}
}

const refusedError = "the control plane refused the job's result"

// forget takes the attempt out of the journal. What can't be taken out is reported again at the next start, which is harmless.
func (a *Agent) forget(jobID string, attempt int64) {
	if err := a.journal.Remove(jobID, attempt); err != nil {
		a.log.Error("journal could not forget a settled attempt", zap.String("job", jobID), zap.Error(err))
	}
}
