package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/query"
)

// The routes of protocol §5. Nothing of a query or an answer goes into a log, a metric or the store.

// maxConnectors bounds the connectors of one activation: far above what one agent holds.
const maxConnectors = 256

// activate hands out queries to an agent, as soon as there are any.
func (s *Server) activate(c *call) error {
	process, err := c.processID()
	if err != nil {
		return err
	}
	o, err := c.object(false)
	if err != nil {
		return err
	}
	name := s.cfg.Limits.Name
	kind := o.str("type", true, name)
	o.str("worker", false, name)
	connectors := o.strs("connectors", maxConnectors, name)
	most := o.int("maxQueries", true, 1, maxWireInt, 1)
	wait := o.millis("waitMs", 0)
	if err := o.err(); err != nil {
		return err
	}
	switch {
	case kind == "":
		return invalid("type: is required")
	case len(connectors) == 0:
		return invalid("connectors: at least one is required")
	}
	if err := c.currentProcess(process); err != nil {
		return err
	}
	if !s.holds.enter(c.auth.Agent.ID) {
		return unavailable(retryHold, "too many requests wait already")
	}
	defer s.holds.leave(c.auth.Agent.ID)
	got, err := s.waitForQueries(c, process, query.Worker{
		AgentID: c.auth.Agent.ID, Type: kind, Connectors: s.announced(c, kind, connectors),
		Max: int(min(most, 1<<20)), Wait: wait,
	})
	if err != nil {
		s.queries.Return(got)
		return err
	}
	if err := c.deliver(wireQueries(got)); err != nil {
		// Nobody knows whether it arrived; the leases' new tokens fence off whoever got it after all.
		s.queries.Return(got)
	}
	return nil
}

// announced keeps an agent to what it registered: queries of other types and connectors aren't its business.
func (s *Server) announced(c *call, kind string, connectors []string) []string {
	if !slices.Contains(c.auth.Agent.Types, kind) {
		return nil
	}
	return slices.DeleteFunc(connectors, func(name string) bool { return !slices.Contains(c.auth.Agent.Connectors, name) })
}

// waitForQueries holds the activation until there is something, or the agent is revoked, replaced or changed.
func (s *Server) waitForQueries(c *call, process string, w query.Worker) ([]query.Leased, error) {
	sub := s.topics.subscribe(agentTopic(w.AgentID))
	defer sub.close()
	// The agent may have changed between its authentication and the subscription.
	if err := errors.Join(c.authenticate(), c.currentProcess(process)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(c.ctx())
	defer cancel()
	changed := false
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-sub.wake:
			changed = true
		case <-s.stopping:
		case <-stop:
			return
		}
		cancel()
	})
	got := s.queries.Lease(ctx, w)
	close(stop)
	watch.Wait()
	if changed {
		if err := c.authenticate(); err != nil {
			return got, err
		}
		if err := c.currentProcess(process); err != nil {
			return got, err
		}
	}
	return got, nil
}

// deliver writes an answer and says whether the connection took it.
func (c *call) deliver(v any) error {
	if err := c.ctx().Err(); err != nil {
		return err
	}
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.wrote = true
	c.w.Header().Set("Cache-Control", "no-store")
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(http.StatusOK)
	if _, err := c.w.Write(body); err != nil {
		return err
	}
	return http.NewResponseController(c.w).Flush()
}

func wireQueries(got []query.Leased) protocol.Activated {
	out := protocol.Activated{Queries: []protocol.Query{}}
	now := time.Now()
	for _, l := range got {
		out.Queries = append(out.Queries, protocol.Query{
			ID: l.ID, LeaseToken: l.Token, Type: l.Type, Connector: l.Connector, Query: l.Query,
			Deadline: l.Deadline.UnixMilli(), Remaining: protocol.Millis(max(0, l.Deadline.Sub(now).Milliseconds())),
		})
	}
	return out
}

// answerQuery brings a page, or the worker's error, to the one who asked.
func (s *Server) answerQuery(c *call) error {
	id, err := c.pathID()
	if err != nil {
		return queryGone()
	}
	o, err := c.object(false)
	if err != nil {
		return err
	}
	o.str("worker", false, s.cfg.Limits.Name)
	token := o.str("leaseToken", true, 0)
	page := o.json("page", int(s.cfg.Limits.JSONBody))
	failure := o.json("error", int(s.cfg.Limits.JSONBody))
	if err := o.err(); err != nil {
		return err
	}
	var werr *query.WorkerError
	switch {
	case (page == nil) == (failure == nil):
		return invalid("page, error: exactly one of them is required")
	case failure != nil:
		if werr, err = workerError(failure); err != nil {
			return err
		}
	default:
		if err := checkPage(page); err != nil {
			return err
		}
	}
	switch err := s.queries.Answer(id, token, c.auth.Agent.ID, page, werr); {
	case errors.Is(err, query.ErrGone):
		return queryGone()
	case errors.Is(err, query.ErrFenced):
		return newProblem(http.StatusConflict, protocol.CodeFenced, "the query is leased to somebody else")
	case err != nil:
		return err
	}
	return c.answer(http.StatusNoContent, nil)
}

func queryGone() *problem {
	return newProblem(http.StatusGone, protocol.CodeGone, "nobody waits for this answer any more")
}

func workerError(raw json.RawMessage) (*query.WorkerError, error) {
	o, err := decodeObject(raw)
	if err != nil {
		return nil, invalid("error: is not an object")
	}
	o.prefix = "error."
	const day = 24 * 3600
	e := &query.WorkerError{
		Code:       o.id("code", true),
		RetryAfter: time.Duration(o.int("retryAfter", false, 0, day, 0)) * time.Second,
	}
	if err := o.err(); err != nil {
		return nil, err
	}
	if e.Code == "" {
		return nil, invalid("error.code: is required")
	}
	return e, nil
}

func checkPage(raw json.RawMessage) error {
	o, err := decodeObject(raw)
	if err != nil {
		return invalid("page: is not an object")
	}
	o.prefix = "page."
	items, ok := o.get("items", true)
	if ok && items[0] != '[' {
		o.fail("items", "is not a list")
	}
	o.str("next", false, 0)
	return o.err()
}

// ask is the admin side: it waits for the answer, and an asker that goes away withdraws its query.
func (s *Server) ask(c *call) error {
	o, err := c.object(false)
	if err != nil {
		return err
	}
	name := s.cfg.Limits.Name
	q := query.Question{
		Type:      o.str("type", true, name),
		Connector: o.str("connector", true, name),
		Query:     o.json("query", s.cfg.Limits.Payload),
		Timeout:   o.millis("timeoutMs", 0),
	}
	if q.Query == nil {
		o.fail("query", "is required")
	}
	if err := o.err(); err != nil {
		return err
	}
	page, err := s.queries.Ask(c.ctx(), q)
	if werr, ok := errors.AsType[*query.WorkerError](err); ok {
		p := newProblem(http.StatusBadGateway, protocol.Code(werr.Code), "the connector answered with an error of its own")
		p.retryAfter = werr.RetryAfter
		return p
	}
	switch {
	case errors.Is(err, query.ErrUnavailable):
		return unavailable(0, "no agent that is present holds this connector")
	case errors.Is(err, query.ErrBusy):
		p := newProblem(http.StatusTooManyRequests, protocol.CodeBusy, "too many queries wait already")
		p.retryAfter = time.Second
		return p
	case errors.Is(err, query.ErrTimeout):
		return newProblem(http.StatusGatewayTimeout, protocol.CodeTimeout, "no answer came in time")
	case err != nil:
		return err
	}
	return c.answer(http.StatusOK, page)
}
