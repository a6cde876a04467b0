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

// heartbeat is one heartbeat, and what it has while it waits.
type heartbeat struct {
	ref  store.Ref
	beat store.Beat

	hold *hold         // nil: it doesn't wait
	sub  *subscription // to its job and its agent
}

// heartbeat renews a lease as it arrives, holds its answer so that a cancel needs no connection of its own, and
// renews again as it answers. The first one accepts the offer.
func (s *Server) heartbeat(c *call) error {
	h, wait, err := s.readHeartbeat(c)
	if err != nil {
		return err
	}
	if wait > 0 {
		if hold, ok := c.enter(wait); ok {
			h.hold = hold
			// Before the first renewal: a cancel is either in its answer or announced.
			h.sub = s.topics.subscribeWith(hold.wake, jobTopic(h.ref.JobID), agentTopic(h.ref.AgentID))
		} // else as a server that can't hold: the agent paces itself
	}
	h.beat.Urgent = h.hold == nil // most of all an accept: a job waits for it
	return h.renew(c)
}

// readHeartbeat checks all that a heartbeat says.
func (s *Server) readHeartbeat(c *call) (*heartbeat, time.Duration, error) {
	if _, err := c.pathID(); err != nil {
		return nil, 0, err
	}
	q, err := c.query()
	if err != nil {
		return nil, 0, err
	}
	// A third of the TTL: with the answer's way back and one more request, two of three heartbeats may be lost.
	waitMs, err := queryInt(q, "waitMs", (s.leaseTTL() / 3).Milliseconds(), 0)
	if err != nil {
		return nil, 0, err
	}
	o, err := c.object(false)
	if err != nil {
		return nil, 0, err
	}
	beat := store.Beat{
		SpooledBytes:    o.int("spooledBytes", false, 0, maxWireInt, 0),
		OldestUnshipped: o.millis("oldestUnshippedMs", 0),
	}
	ref, err := c.claim(o)
	return &heartbeat{ref: ref, beat: beat}, time.Duration(waitMs) * time.Millisecond, err
}

// renew renews, and waits on unless there is something to say.
func (h *heartbeat) renew(c *call) error {
	defer func() {
		if c.then == nil && h.hold != nil {
			c.leave(h.hold)
			h.sub.close()
		}
	}()
	over := true
	if h.hold != nil {
		if err := c.ctx().Err(); err != nil {
			return err // nobody hears an answer, so nothing is renewed for it
		}
		over = h.hold.over(c.s)
		if h.sub.news.Swap(false) {
			// Something about the job or the agent: revoked ends the hold, the renewal tells the rest.
			if err := c.authenticate(); err != nil {
				return err
			}
			h.beat.Urgent = true
		}
	}
	lease, err := c.s.store.Renew(c.ctx(), h.ref, c.s.leaseTTL(), h.beat)
	if err != nil {
		return err
	}
	if !over && !lease.CancelRequested {
		return c.wait(h.hold, h.renew)
	}
	answer := protocol.Heartbeat{LeaseTTL: protocol.ToMillis(c.s.leaseTTL()), Heartbeat: protocol.ToMillis(c.s.heartbeatPace())}
	if lease.CancelRequested {
		answer.Cancel = &protocol.Cancel{Reason: lease.CancelReason, Grace: protocol.ToMillis(lease.Grace)}
	}
	return c.answer(http.StatusOK, answer)
}
