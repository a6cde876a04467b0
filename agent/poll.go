package agent

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.uber.org/zap"

	"agentd/agent/identity"
	"agentd/agent/protocol"
)

const (
	defaultPollWait = 30 * time.Second // protocol §3's example; a link says what the server wants
	// holdGrace is the client's time beyond the wait (protocol §3).
	holdGrace = 15 * time.Second
	// lookAgain bounds how long a change that nobody announces (room on a disk) goes unseen, and stamps the loop as alive.
	lookAgain = 5 * time.Second
	// takeBackTimeout bounds the last poll of a drain: a round trip on a bad link.
	takeBackTimeout = 2 * time.Second
)

// poller is the state of the poll loop; it belongs to that loop alone.
type poller struct {
	id      string
	wait    learnedWait
	backOff backoff.BackOff
	failing int
	since   time.Time // of the first failure in a row
	// probe: the next poll doesn't wait. At the start, and after trouble, an answer is worth more than a hold: it
	// says within a round trip that the control plane is there.
	probe bool
}

// poll asks for work while take lives, and returns when all attempts that came of it are over.
func (a *Agent) poll(take, work, deliver context.Context) {
	const loop = "poll"
	var attempts sync.WaitGroup
	defer attempts.Wait()

	select {
	case <-take.Done():
		return
	case <-a.link.ready:
	}
	p := poller{id: newPollID(), backOff: protocol.NewBackOff(0), probe: true}
	for {
		types := a.demand(take)
		if types == nil {
			break
		}
		wait := p.wait.of(a.pollWait())
		if p.probe {
			wait = 0
		}
		a.pulse.beat(loop, wait+holdGrace)
		a.notePoll(wait, p.wait.learned > 0)
		sent := time.Now()
		asking, enough := a.asking(take)
		job, err := a.plane.NextJob(asking, protocol.PollRequest{PollID: p.id, Wait: wait, Types: types})
		drained := asking.Err() != nil
		enough()
		if err != nil && drained && take.Err() == nil {
			a.takeBack(context.WithoutCancel(take), p.id)
			p.id = newPollID()
		}
		if err != nil {
			a.freeSlot() // after the taking back, so that who waits for the drain waits for that as well
			if take.Err() != nil {
				break
			}
			if drained {
				continue
			}
			a.pollFailed(take, &p, wait, time.Since(sent), err)
			continue
		}
		a.pollAnswered(&p)
		if job == nil {
			a.freeSlot()
			continue
		}
		attempts.Go(func() { a.attempt(take, work, deliver, job) })
	}
	a.takeBack(context.WithoutCancel(take), p.id)
	a.pulse.end(loop) // its attempts have beats of their own, however long they take to end
}

// asking is take for one poll, which a drain breaks off as well.
func (a *Agent) asking(take context.Context) (context.Context, context.CancelFunc) {
	ctx, enough := context.WithCancel(take)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.enough = enough
	if a.drained {
		enough()
	}
	return ctx, enough
}

// demand waits until a job could start now, takes its slot, and returns the types to ask for; nil when ctx has ended.
func (a *Agent) demand(ctx context.Context) []string {
	for {
		a.pulse.beat("poll", lookAgain)
		changed, full := a.changes(), a.logs.Changed() // before the look, so that no change is missed
		why, types := a.ready()
		if types != nil {
			return types
		}
		a.noteWaiting(why)
		timer := time.NewTimer(lookAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
		case <-full:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// ready says why no job can be taken, or takes a slot and names the types to ask for.
func (a *Agent) ready() (why string, types []string) {
	link := a.ident.Status()
	full := a.logs.Full()
	free := a.journal.Free()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.stopping:
		return "stopping", nil
	case a.drained:
		return "drained: `agentd drain --off` ends it", nil
	case link.State != identity.Linked:
		return "identity: " + string(link.State), nil
	case len(a.handlers) == 0:
		return "no job type has a handler", nil
	case full != "":
		return full, nil
	case time.Now().Before(a.pause):
		return "a job could not be begun here; the log says why", nil
	case a.slots >= a.maxJobs:
		return "every slot is taken", nil
	case free < 1 || len(a.attempts) >= 2*a.maxJobs+spareSlots:
		return "too many outcomes wait for the control plane", nil
	}
	a.slots++
	return "", a.typesLocked()
}

func (a *Agent) freeSlot() { a.update(func() { a.slots-- }) }

// pollFailed does what the protocol's table says, and waits. The poll's id stays: if the answer got lost,
// the next poll gets the same offer.
func (a *Agent) pollFailed(ctx context.Context, p *poller, wait, age time.Duration, err error) {
	if p.failing++; p.failing == 1 {
		p.since = time.Now()
		a.log.Warn("poll failed", zap.Error(err))
	}
	a.update(func() { a.polls.Err, a.polls.Failing = err.Error(), p.failing })
	if shorter, learned := p.wait.cut(wait, age, err); learned {
		a.log.Warn("polls were cut on the way, polled with a shorter wait from now on",
			zap.Duration("cut_at", age), zap.Duration("wait", shorter), zap.Error(err))
	}
	p.probe = p.wait.cuts == 0 // while cuts are being counted, polls must live long enough to be cut
	pause := time.Duration(0)
	switch protocol.ActionFor(err) {
	case protocol.StopConflict, protocol.StopRevoked:
		a.ident.Report(err) // its state keeps the loop from asking until it has changed
		return
	case protocol.RetrySlow, protocol.Bisect:
		pause = protocol.LongestBackOff
	default:
	}
	a.pulse.beat("poll", pause+waitFor(err)+protocol.LongestBackOff)
	if pause > 0 && !a.sleep(ctx, pause) {
		return
	}
	_ = protocol.Pause(ctx, p.backOff, err) // its error is ctx's, which the loop sees
}

func waitFor(err error) time.Duration {
	d, _ := protocol.RetryAfter(err)
	return d
}

func (a *Agent) pollAnswered(p *poller) {
	if p.failing > 0 {
		a.log.Info("poll was answered again", zap.Int("failed", p.failing), zap.Duration("after", time.Since(p.since)))
	}
	p.id, p.failing, p.probe = newPollID(), 0, false
	p.backOff.Reset()
	p.wait.answered()
	a.update(func() {
		a.polls.Answered, a.polls.Err, a.polls.Failing = time.Now(), "", 0
		a.polls.Count++
	})
}

// takeBack releases the offer that the last poll may have been given while it was broken off, so
// that the job needn't wait for the offer to lapse. The same poll id gets the same offer.
func (a *Agent) takeBack(ctx context.Context, pollID string) {
	a.mu.Lock()
	types, failing := a.typesLocked(), a.polls.Failing > 0
	a.mu.Unlock()
	if failing || a.ident.Status().State != identity.Linked || len(types) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, takeBackTimeout)
	defer cancel()
	if job, err := a.plane.NextJob(ctx, protocol.PollRequest{PollID: pollID, Types: types}); err == nil && job != nil {
		a.release(ctx, job, "draining")
	}
}

func (a *Agent) release(ctx context.Context, job *protocol.Job, reason string) {
	err := a.plane.Release(ctx, job.ID, protocol.Release{Attempt: job.Attempt, LeaseToken: job.LeaseToken, Reason: reason})
	a.log.Info("offer was released", zap.String("job", job.ID), zap.Int64("attempt", job.Attempt), zap.String("reason", reason), zap.Error(err))
}

// sleep waits for d and says whether ctx is still alive.
func (a *Agent) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func newPollID() string { return "poll_" + rand.Text() }

func (a *Agent) notePoll(wait time.Duration, learned bool) {
	a.update(func() {
		a.polls.Waiting, a.polls.Wait, a.polls.Learned = "", wait, learned
	})
}

// noteWaiting says in the status, and once in the log, why no job is asked for.
func (a *Agent) noteWaiting(why string) {
	a.mu.Lock()
	news := a.polls.Waiting != why
	a.polls.Waiting = why
	a.mu.Unlock()
	if news && !slices.Contains([]string{"every slot is taken", "stopping"}, why) {
		a.log.Info("no job was asked for", zap.String("why", why))
	}
}
