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

// poll is one poll, and what it has while it waits.
type poll struct {
	id, process string
	types       []string
	window      time.Duration

	hold   *hold
	waiter *waiter
	agent  *subscription // an agent's own changes: revoked, another process, other labels
	looked bool
	owed   []string // jobs it was woken for and hasn't answered
	got    string   // the job that it leaves with
}

// nextJob is the held poll (protocol §3): it looks, and waits, and looks again when it is woken.
func (s *Server) nextJob(c *call) error {
	p, err := s.readPoll(c)
	if err != nil {
		return err
	}
	h, ok := c.enter(p.window)
	if !ok {
		return unavailable(retryHold, "too many requests wait already")
	}
	p.hold = h
	p.waiter = s.hub.newWaiter(c.auth.Agent.ID, p.types, h.wake)
	p.agent = s.topics.subscribeWith(h.wake, agentTopic(c.auth.Agent.ID))
	return p.next(c)
}

// next looks, and waits on if there is nothing.
func (p *poll) next(c *call) error {
	defer func() {
		if c.then == nil {
			p.close(c)
		}
	}()
	if err := c.ctx().Err(); err != nil {
		return err // don't lease for someone who has gone
	}
	if p.looked && p.hold.over(c.s) {
		return c.answer(http.StatusNoContent, nil)
	}
	if err := p.enlist(c); err != nil {
		return err
	}
	offer, err := p.look(c)
	if err != nil {
		return err
	}
	if offer == nil {
		p.owed = nil // the job that it was woken for is someone else's
		p.looked = true
		if p.hold.over(c.s) {
			return c.answer(http.StatusNoContent, nil)
		}
		return c.wait(p.hold, p.next)
	}
	p.got = offer.Job.ID
	return c.s.answerPoll(c, offer)
}

// close gives everything back.
func (p *poll) close(c *call) {
	c.leave(p.hold)
	p.agent.close()
	p.waiter.leave(p.got, p.owed...)
}

// readPoll checks all that a poll says.
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
	if s.isStopping() {
		// A 204 would bring the agent straight back.
		return nil, unavailable(time.Second, "the server is shutting down")
	}
	return &poll{id: id, process: process, types: types, window: wait}, nil
}

func (s *Server) answerPoll(c *call, offer *store.Offer) error {
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

// enlist makes the poll known to the hub, as its agent is now.
func (p *poll) enlist(c *call) error {
	// The agent may also have changed between its authentication and the subscription.
	changed := p.agent.news.Swap(false) || !p.looked
	if changed {
		if err := c.authenticate(); err != nil {
			return err
		}
		if err := c.currentProcess(p.process); err != nil {
			return err
		}
	}
	p.owed = p.waiter.enlist(c.auth.Agent.Labels)
	if changed {
		// What came for its old labels goes to whoever matches now.
		for _, job := range p.owed {
			c.s.hub.offer(job, nil)
		}
		p.owed = nil
	}
	return nil
}

// look leases the job that goes to this poll, if there is one now; nil: there isn't.
func (p *poll) look(c *call) (*store.Offer, error) {
	offer, err := c.s.store.Lease(c.ctx(), store.LeaseParams{
		AgentID: c.auth.Agent.ID, Labels: c.auth.Agent.Labels, Types: p.types, PollID: p.id, TTL: c.s.leaseTTL(),
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
