package identity

import (
	"context"
	"crypto/ed25519"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.uber.org/zap"

	"agentd/agent/protocol"
)

const (
	// askAgain is the protocol's pace for an agent that was refused or revoked.
	askAgain = 5 * time.Minute
	// tokenWatch is how often a refused agent looks at its token: a person who has just put a new
	// one in place is watching.
	tokenWatch = 5 * time.Second
	// shortestRetry is between a link that failed and one that a refused call asks for, however many are refused: less than
	// heartbeats pause (2 s), so that the first of them after an outage finds a new key, or gets one.
	shortestRetry = time.Second
	// shortestRenewal keeps a server with absurdly short keys from being asked in a tight loop.
	shortestRenewal = 250 * time.Millisecond
)

// Run links, and keeps the agent linked, until ctx ends (nil). It returns an error only where
// no waiting helps and nothing is linked yet: no token (ErrNotLinked), or a state directory
// that can't be written.
func (i *Identity) Run(ctx context.Context) error {
	defer i.stop()
	pace := protocol.NewBackOff(0)
	i.mu.Lock()
	if i.next.IsZero() {
		i.next = time.Now() // nothing linked in this process yet
	}
	i.mu.Unlock()
	for i.wait(ctx) {
		err := i.relink(ctx)
		switch {
		case err == nil:
			pace.Reset()
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrNotLinked), errors.Is(err, ErrNotWritable) && !i.first:
			return err
		default:
			i.failed(err, pace)
		}
	}
	return nil
}

func (i *Identity) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stopped = true
	close(i.changed)
	i.changed = make(chan struct{})
}

// wait returns true when it is time to link, false when ctx has ended.
func (i *Identity) wait(ctx context.Context) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	watch := time.NewTicker(tokenWatch)
	defer watch.Stop()
	for {
		i.mu.Lock()
		next, state := i.next, i.state
		i.mu.Unlock()
		if ctx.Err() != nil {
			return false
		}
		due := (<-chan time.Time)(nil)
		if !next.IsZero() {
			left := time.Until(next)
			if left <= 0 {
				return true
			}
			timer.Reset(left)
			due = timer.C
		}
		tokens := watch.C
		if state != Refused {
			tokens = nil
		}
		select {
		case <-due:
		case <-tokens:
			if token, err := i.cfg.Token(); err == nil && token != "" && token != i.token {
				i.log.Info("found another token")
				return true
			}
		case <-i.wake:
		case <-ctx.Done():
		}
	}
}

// relink links once: by proof under the agent's id, or with the token while there is none. A
// proof that was refused is no reason to use a token, but a token that a person has put in
// place since is.
func (i *Identity) relink(ctx context.Context) error {
	present, err := i.cfg.Token()
	token := present
	switch {
	case i.rec.AgentID == "" && err != nil:
		return err
	case i.rec.AgentID == "" && token == "":
		return ErrNotLinked
	case i.rec.AgentID != "" && (!i.refusedBefore() || present == i.token):
		token = ""
	}
	rec := i.rec
	if rec.Seed == nil {
		if rec, err = i.pending(false); err != nil {
			return err
		}
		i.rec = rec
	}
	link, err := i.ask(ctx, rec, token)
	if err != nil {
		if protocol.CodeOf(err) == protocol.CodeUnauthenticated {
			i.token = present // whether it was used or not: another one is worth another try
		}
		return err
	}
	if old := i.rec.AgentID; old != "" && old != link.AgentID {
		i.log.Warn("the server gave this agent another id", zap.String("old", old), zap.String("agent", link.AgentID))
	}
	if err := i.keep(rec, link); err != nil {
		// Linked all the same; the same token and key pair give the same id again.
		i.log.Error("identity was not stored", zap.Error(err))
	}
	i.adopt(link)
	return nil
}

func (i *Identity) refusedBefore() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.state == Refused
}

// failed decides when to ask again.
func (i *Identity) failed(err error, pace backoff.BackOff) {
	wait := pace.NextBackOff()
	if asked, ok := protocol.RetryAfter(err); ok {
		wait += asked
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	state := Away
	switch protocol.ActionFor(err) { //nolint:exhaustive // the rest is retried with back-off
	case protocol.Relink:
		state, wait = Refused, max(askAgain, wait)
	case protocol.StopRevoked:
		state, wait = Revoked, max(askAgain, wait)
	case protocol.StopConflict:
		state, wait = Conflict, max(askAgain, wait)
	case protocol.Bisect:
		wait = max(askAgain, wait) // what we announce is malformed; the next reload may mend it
	case protocol.RetrySlow:
		wait = max(time.Minute, wait)
	}
	i.tried = time.Now()
	i.next, i.failing = i.tried.Add(wait), true
	if state == Conflict && !i.first {
		i.next = time.Time{} // never with start again by itself
	}
	i.lastErr = err
	switch {
	case state != Away || i.state == Unlinked || i.state == Away:
		i.enter(state, err)
	case i.state == Linked:
		i.enter(Linked, err) // the key may still be good
	default:
		i.enter(i.state, i.cause) // graver than an outage
	}
}

func publicKey(key ed25519.PrivateKey) []byte {
	return []byte(key.Public().(ed25519.PublicKey)) //nolint:forcetypeassert // documented to be one
}
