package controlplane

import (
	"math"
	"net/http"
	"slices"

	"agentd/agent/protocol"
)

var outcomes = []protocol.Outcome{protocol.Succeeded, protocol.Failed, protocol.Cancelled, protocol.TimedOut, protocol.Lost}

// complete settles an attempt with its outcome.
func (s *Server) complete(c *call) error {
	if _, err := c.pathID(); err != nil {
		return err
	}
	o, err := c.object(false)
	if err != nil {
		return err
	}
	done := protocol.Completion{
		Outcome:    protocol.Outcome(o.str("outcome", true, 0)),
		ExitCode:   int(o.int("exitCode", false, math.MinInt32, math.MaxInt32, 0)),
		Signal:     o.str("signal", false, s.cfg.Limits.Name),
		Error:      o.str("error", false, 0), // the body's limit is enough: an outcome is not refused for its explanation
		Result:     o.json("result", s.cfg.Limits.Result),
		LogRecords: o.int("logRecords", true, 0, maxWireInt, 0),
		StartedAt:  o.time("startedAt"),
		FinishedAt: o.time("finishedAt"),
	}
	if o.fault == nil && !slices.Contains(outcomes, done.Outcome) {
		o.fail("outcome", "is none of succeeded, failed, cancelled, timedOut, lost")
	}
	ref, err := c.claim(o)
	if err != nil {
		return err
	}
	if err := s.store.Complete(c.ctx(), ref, done); err != nil {
		return err
	}
	s.metrics.completions.WithLabelValues(string(done.Outcome)).Inc()
	return c.answer(http.StatusOK, struct{}{})
}

// release gives an offer back.
func (s *Server) release(c *call) error {
	if _, err := c.pathID(); err != nil {
		return err
	}
	o, err := c.object(false)
	if err != nil {
		return err
	}
	reason := o.str("reason", false, 1024)
	ref, err := c.claim(o)
	if err != nil {
		return err
	}
	if err := s.store.Release(c.ctx(), ref, reason); err != nil {
		return err
	}
	return c.answer(http.StatusOK, struct{}{})
}
