package controlplane

import (
	"context"
	"time"
)

// hold is how a call waits. News, the end of its time and the server's stopping all wake it through one channel, and it
// finds out which it was: a select with a case for each would cost another 100 bytes a case, ten thousand times.
type hold struct {
	wake  chan struct{} // holds one
	until time.Time
	timer *time.Timer
}

// enter takes a place among the agent's holds for d. With ok, leave must be called.
func (c *call) enter(d time.Duration) (h *hold, ok bool) {
	if !c.s.holds.enter(c.auth.Agent.ID) {
		return nil, false
	}
	h = &hold{wake: make(chan struct{}, 1), until: time.Now().Add(d)}
	h.timer = time.AfterFunc(d, func() { notify(h.wake) })
	return h, true
}

func (c *call) leave(h *hold) {
	h.timer.Stop()
	c.s.holds.leave(c.auth.Agent.ID)
}

// notify wakes whoever waits on a channel that holds one: one wake is enough for any number of reasons.
func notify(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// wait lasts until there is a reason to go on, or the client goes away.
func (h *hold) wait(ctx context.Context) {
	select {
	case <-h.wake:
	case <-ctx.Done():
	}
}

// over: there is no more time to wait.
func (h *hold) over(s *Server) bool { return s.isStopping() || !time.Now().Before(h.until) }

// wait makes the call go on with then when h is woken, or its client has gone.
func (c *call) wait(h *hold, then endpoint) error {
	c.hold, c.then = h, then
	return nil
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}
