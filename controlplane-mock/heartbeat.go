package controlplane

import (
	"crypto/subtle"
	"net/http"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// claim reads which attempt a body speaks for. To be called last: it answers what was wrong with any field.
func (c *call) claim(o *object) (store.Ref, error) {
	ref := store.Ref{
		JobID:   c.PathValue("id"),
		Attempt: o.int("attempt", true, 0, maxWireInt, 0),
		AgentID: c.auth.Agent.ID,
	}
	token := o.str("leaseToken", true, 0)
	if err := o.err(); err != nil {
		return ref, err
	}
	return c.proven(ref, token)
}

// noAttempt is an attempt that no job has.
const noAttempt = -1

// proven is ref, if token is the lease token of its attempt. With any other, nothing is claimed: what that means
// (the job is unknown, or the lease lost) is the store's to say, as for a number that the job never had.
func (c *call) proven(ref store.Ref, token string) (store.Ref, error) {
	secrets, err := c.s.secrets(c.ctx())
	if err != nil {
		return ref, err
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(secrets.leaseToken(ref.JobID, ref.Attempt))) != 1 {
		ref.Attempt = noAttempt
	}
	return ref, nil
}

// pathID is the path's {id}. What isn't an id can't be known.
func (c *call) pathID() (string, error) {
	id := c.PathValue("id")
	if !validID(id) {
		return "", notFound("no such id")
	}
	return id, nil
}

// heartbeat renews a lease as it arrives, holds its answer so that a cancel needs no connection of its own, and
// renews again as it answers. The first one accepts the offer.
func (s *Server) heartbeat(c *call) error {
	if _, err := c.pathID(); err != nil {
		return err
	}
	q, err := c.query()
	if err != nil {
		return err
	}
	ttl := s.leaseTTL()
	// A third of the TTL: with the answer's way back and one more request, two of three heartbeats may be lost.
	waitMs, err := queryInt(q, "waitMs", (ttl / 3).Milliseconds(), 0)
	if err != nil {
		return err
	}
	o, err := c.object(false)
	if err != nil {
		return err
	}
	beat := store.Beat{
		SpooledBytes:    o.int("spooledBytes", false, 0, maxWireInt, 0),
		OldestUnshipped: o.millis("oldestUnshippedMs", 0),
	}
	ref, err := c.claim(o)
	if err != nil {
		return err
	}
	wait := time.Duration(waitMs) * time.Millisecond
	if wait > 0 {
		leave, ok := s.holds.enter(c.auth.Agent.ID)
		if ok {
			defer leave()
		} else {
			wait = 0 // as a server that can't hold: the agent paces itself
		}
	}
	lease, err := s.holdLease(c, ref, beat, wait)
	if err != nil {
		return err
	}
	answer := protocol.Heartbeat{LeaseTTL: protocol.ToMillis(s.leaseTTL()), Heartbeat: protocol.ToMillis(s.heartbeatPace())}
	if lease.CancelRequested {
		answer.Cancel = &protocol.Cancel{Reason: lease.CancelReason, Grace: protocol.ToMillis(lease.Grace)}
	}
	return c.answer(http.StatusOK, answer)
}

// holdLease renews, waits for a reason to answer, and renews again.
func (s *Server) holdLease(c *call, ref store.Ref, beat store.Beat, wait time.Duration) (store.Lease, error) {
	var wake <-chan struct{}
	if wait > 0 {
		// Before the first renewal: a cancel is either in its answer or announced.
		sub := s.topics.subscribe(jobTopic(ref.JobID), agentTopic(c.auth.Agent.ID))
		defer sub.close()
		wake = sub.wake
	}
	beat.Urgent = wait <= 0 // most of all an accept: a job waits for it
	lease, err := s.store.Renew(c.ctx(), ref, s.leaseTTL(), beat)
	if err != nil || lease.CancelRequested || wait <= 0 {
		return lease, err
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	for done := false; !done; {
		select {
		case <-end.C:
			done = true
		case <-s.stopping:
			done = true
		case <-c.ctx().Done():
			return lease, c.ctx().Err() // nobody hears an answer, so nothing is renewed for it
		case <-wake:
			// Something about the job or the agent: revoked ends the hold, the renewal tells the rest.
			if err := c.authenticate(); err != nil {
				return lease, err
			}
			beat.Urgent = true
		}
		if lease, err = s.store.Renew(c.ctx(), ref, s.leaseTTL(), beat); err != nil || lease.CancelRequested {
			return lease, err
		}
	}
	return lease, nil
}
