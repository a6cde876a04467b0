package controlplane

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// maxTypes bounds the types of one poll or link: far above what one agent handles.
const maxTypes = 256

// poll is what one poll asks for.
type poll struct {
	id, process string
	types       []string
	wait        time.Duration
}

// nextJob is the held poll (protocol §3). A held poll is what a fleet costs while nothing happens, so those who wait (this, waitForJob
// and what calls them) have small frames, and leave to others what needs large ones: a goroutine's stack shrinks to half when
// less than a quarter of it is in use, and with a job or two in these frames it would be 16 KiB an agent instead of 8.
func (s *Server) nextJob(c *call) error {
	p, err := s.readPoll(c)
	if err != nil {
		return err
	}
	leave, ok := s.holds.enter(c.auth.Agent.ID)
	if !ok {
		return unavailable(retryHold, "too many requests wait already")
	}
	defer leave()
	offer, err := s.waitForJob(c, p)
	if err != nil {
		return err
	}
	return s.answerPoll(c, offer)
}

// readPoll checks all that a poll says.
//
//go:noinline
func (s *Server) readPoll(c *call) (*poll, error) {
	process, err := c.processID()
	if err != nil {
		return nil, err
	}
	id := c.Header.Get("Agentd-Poll-Id")
	if !validID(id) {
		return nil, invalid("Agentd-Poll-Id: is required (at most 64 characters from A-Z a-z 0-9 _ -)")
	}
	types, wait, err := s.pollQuery(c)
	if err != nil {
		return nil, err
	}
	if err := c.currentProcess(process); err != nil {
		return nil, err
	}
	select {
	case <-s.stopping:
		// A 204 would bring the agent straight back.
		return nil, unavailable(time.Second, "the server is shutting down")
	default:
	}
	return &poll{id: id, process: process, types: types, wait: wait}, nil
}

// answerPoll tells what came; nil: nothing.
//
//go:noinline
func (s *Server) answerPoll(c *call, offer *store.Offer) error {
	if offer == nil {
		return c.answer(http.StatusNoContent, nil)
	}
	secrets, err := s.secrets(c.ctx())
	if err != nil {
		return err // the same poll id gets the offer again
	}
	s.metrics.offers.Inc()
	return c.answer(http.StatusOK, s.wireJob(*offer, secrets.leaseToken(offer.Job.ID, offer.Attempt)))
}

func (s *Server) pollQuery(c *call) ([]string, time.Duration, error) {
	q, err := c.query()
	if err != nil {
		return nil, 0, err
	}
	limit := int64(s.cfg.PollCap / time.Second)
	seconds, err := queryInt(q, "wait", limit, -1)
	if err != nil {
		return nil, 0, err
	}
	wait := time.Duration(seconds) * time.Second
	if seconds < 0 {
		wait = s.cfg.PollWait
	}
	types := q["type"]
	if len(types) == 0 || len(types) > maxTypes {
		return nil, 0, invalid("type: 1 to %d are required", maxTypes)
	}
	for _, t := range types {
		if t == "" || !utf8.ValidString(t) || utf8.RuneCountInString(t) > s.cfg.Limits.Name {
			return nil, 0, invalid("type: has 1 to %d characters", s.cfg.Limits.Name)
		}
	}
	return types, wait, nil
}

// waitForJob looks, and waits, and looks again when it is woken. nil: nothing came.
func (s *Server) waitForJob(c *call, p *poll) (*store.Offer, error) {
	w := s.hub.enlist(&c.auth.Agent, p.types)
	var got string
	var owed []string
	defer func() { w.leave(got, owed...) }()
	// An agent's own changes: revoked, another process, other labels.
	sub := s.topics.subscribe(agentTopic(c.auth.Agent.ID))
	defer sub.close()
	end := time.NewTimer(p.wait)
	defer end.Stop()
	// The agent may have changed between its authentication and the subscription.
	changed := true
	for {
		if changed {
			if err := s.pollAgain(c, p, w); err != nil {
				return nil, err
			}
			changed = false
		}
		offer, err := s.lookForJob(c, p)
		if err != nil {
			return nil, err
		}
		if offer != nil {
			got = offer.Job.ID
			return offer, nil
		}
		owed = nil // nothing for this poll: the job that it was woken for is someone else's
		select {
		case <-end.C:
			return nil, nil //nolint:nilnil // the comment above says what it means
		case <-s.stopping:
			return nil, nil //nolint:nilnil // as above
		case <-c.ctx().Done():
			return nil, c.ctx().Err()
		case job := <-w.wake:
			owed = append(w.again(&c.auth.Agent), job)
		case <-sub.wake:
			changed = true
		}
		if c.ctx().Err() != nil {
			// Don't lease for someone who has gone.
			return nil, c.ctx().Err()
		}
	}
}

// pollAgain goes on for an agent that may have changed.
//
//go:noinline
func (s *Server) pollAgain(c *call, p *poll, w *waiter) error {
	if err := c.authenticate(); err != nil {
		return err
	}
	if err := c.currentProcess(p.process); err != nil {
		return err
	}
	// What came for its old labels goes to whoever matches now.
	for _, job := range w.again(&c.auth.Agent) {
		s.hub.offer(job, nil)
	}
	return nil
}

// lookForJob leases the job that goes to this poll, if there is one now; nil: there isn't.
//
//go:noinline
func (s *Server) lookForJob(c *call, p *poll) (*store.Offer, error) {
	offer, err := s.store.Lease(c.ctx(), store.LeaseParams{
		AgentID: c.auth.Agent.ID, Labels: c.auth.Agent.Labels, Types: p.types, PollID: p.id, TTL: s.leaseTTL(),
	})
	switch {
	case errors.Is(err, store.ErrNoJob):
		return nil, nil //nolint:nilnil // the comment above says what it means
	case err != nil:
		return nil, err
	}
	return &offer, nil
}

func (s *Server) wireJob(o store.Offer, token string) protocol.Job {
	env := o.Job.Env
	if env == nil {
		env = map[string]string{}
	}
	payload := o.Job.Payload
	if payload == nil {
		payload = []byte("{}")
	}
	return protocol.Job{
		ID: o.Job.ID, Type: o.Job.Type, Attempt: o.Attempt, LeaseToken: token, LeaseTTL: protocol.ToMillis(s.leaseTTL()),
		Payload: payload, Env: env, Timeout: protocol.ToMillis(o.Job.Timeout), Grace: protocol.ToMillis(o.Job.Grace),
		Exclusive: o.Job.Exclusive, CreatedAt: o.Job.CreatedAt,
	}
}

// leaseTokenFunc derives lease tokens: a re-offer repeats its token, any instance can check one, and none is stored.
func leaseTokenFunc(secret []byte) func(job string, attempt int64) string {
	return func(job string, attempt int64) string {
		mac := hmac.New(sha256.New, secret)
		// Ids hold no '|', so no two pairs make the same text.
		mac.Write([]byte("agentd-lease-v1|" + job + "|" + strconv.FormatInt(attempt, 10)))
		return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
}
