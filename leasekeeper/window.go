package leasekeeper

import (
	"time"

	"agentd/agent/protocol"
)

// window is the arithmetic of one TTL: see the picture in the package comment.
type window struct {
	ttl    time.Duration
	grace  time.Duration // already capped
	margin time.Duration
	kill   time.Duration
}

func newWindow(ttl, grace time.Duration) window {
	return window{
		ttl:    ttl,
		grace:  min(grace, ttl/2),
		margin: ttl / 20,
		kill:   min(killTime, ttl/10), // short TTLs are for tests and fast fail-over: there the kill gets its share
	}
}

// budget is how old the last answered heartbeat may get before an exclusive attempt must end.
func (w window) budget() time.Duration { return w.ttl - w.margin - w.kill - w.grace }

// hold is how long a heartbeat asks to be held. While one is held, the last answered one
// was sent up to two holds ago, so an exclusive lease spends half of its budget
// on that and has the other half for trouble.
func (w window) hold(exclusive bool) time.Duration {
	h := min(maxHold, w.ttl/3)
	if exclusive {
		h = min(h, w.budget()/4)
	}
	return h.Truncate(time.Millisecond)
}

// pace is the time from one heartbeat to the next where the server doesn't hold.
func (w window) pace(heartbeat time.Duration, exclusive bool) time.Duration {
	p := w.ttl / 3
	if heartbeat > 0 {
		p = min(p, heartbeat)
	}
	if exclusive {
		p = min(p, w.budget()/2)
	}
	return max(p, minPace)
}

// pause bounds the back-off after a miss. An exclusive lease with little budget tries faster.
func (w window) pause(exclusive bool) time.Duration {
	p := min(protocol.LongestHeartbeatBackOff, w.ttl/3)
	if exclusive {
		p = min(p, max(w.budget()/8, minPace))
	}
	return p
}

// answer is how long an answer may take beyond the hold: a third of the TTL. Shorter, and a slow link would never be
// heard; longer, and a black-holed connection would cost the lease. An exclusive lease has less to
// spare: it begins with an eighth of its budget, so that a third try still fits, and doubles that with every second miss.
func (w window) answer(exclusive bool, missed int) time.Duration {
	a := w.ttl / 3
	if exclusive {
		a = min(a, (w.budget()/8)<<min(missed/2, 8))
	}
	return min(max(a, minAnswer), maxAnswer)
}
