package controlplane

import (
	"net/http"
	"net/url"
	"unicode/utf8"

	"agentd/controlplane-mock/store"
)

var statuses = map[store.Status]bool{
	store.Pending: true, store.Offered: true, store.Running: true,
	store.JobSucceeded: true, store.JobFailed: true, store.JobCancelled: true, store.JobTimedOut: true,
}

const defaultPage = 100 // what a person reads at once

// page reads limit and after.
func (s *Server) page(q url.Values) (after string, limit int, err error) {
	n, err := queryRange(q, "limit", 1, int64(s.cfg.Limits.Page), min(defaultPage, int64(s.cfg.Limits.Page)))
	if err != nil {
		return "", 0, err
	}
	after = q.Get("after")
	const maxCursor = 512 // a store's own text; ours are far shorter
	if len(after) > maxCursor || !utf8.ValidString(after) {
		return "", 0, invalid("after: is not the next of a page")
	}
	return after, int(n), nil
}

func (s *Server) listJobs(c *call) error {
	q, err := c.query()
	if err != nil {
		return err
	}
	f := store.JobFilter{Status: store.Status(q.Get("status")), AgentID: q.Get("agentId"), Type: q.Get("type")}
	if f.Status != "" && !statuses[f.Status] {
		return invalid("status: is none of pending, offered, running, succeeded, failed, cancelled, timedOut")
	}
	if f.AgentID != "" && !validID(f.AgentID) {
		return invalid("agentId: is not an id")
	}
	if f.After, f.Limit, err = s.page(q); err != nil {
		return err
	}
	jobs, next, err := s.store.Jobs(c.ctx(), f)
	if err != nil {
		return err
	}
	page := Page[JobView]{Items: make([]JobView, 0, len(jobs)), Next: next}
	for _, j := range jobs {
		reason, err := s.fleet.reason(c.ctx(), j)
		if err != nil {
			return err
		}
		page.Items = append(page.Items, viewJob(j, reason))
	}
	return c.answer(http.StatusOK, page)
}

func (s *Server) getJob(c *call) error {
	id, err := c.pathID()
	if err != nil {
		return err
	}
	job, err := s.store.Job(c.ctx(), id)
	if err != nil {
		return err
	}
	return s.answerJob(c, http.StatusOK, job)
}

func (s *Server) answerJob(c *call, status int, job store.Job) error {
	reason, err := s.fleet.reason(c.ctx(), job)
	if err != nil {
		return err
	}
	return c.answer(status, viewJob(job, reason))
}

func (s *Server) cancelJob(c *call) error {
	id, err := c.pathID()
	if err != nil {
		return err
	}
	o, err := c.object(true)
	if err != nil {
		return err
	}
	const maxCancelReason = 1024 // a sentence or two, that the agent shows
	reason := o.str("reason", false, maxCancelReason)
	if err := o.err(); err != nil {
		return err
	}
	job, err := s.store.Cancel(c.ctx(), id, reason)
	if err != nil {
		return err
	}
	return s.answerJob(c, http.StatusAccepted, job)
}

func (s *Server) retryJob(c *call) error {
	id, err := c.pathID()
	if err != nil {
		return err
	}
	if _, err := c.object(true); err != nil {
		return err
	}
	job, err := s.store.Retry(c.ctx(), id)
	if err != nil {
		return err
	}
	return s.answerJob(c, http.StatusAccepted, job)
}
