package leasekeeper

import (
	"errors"
	"fmt"
	"time"

	"agentd/agent/protocol"
)

// Cancelled ends an attempt because the server asked for it.
type Cancelled struct {
	Reason string
	Grace  time.Duration // between SIGTERM and SIGKILL
}

func (c *Cancelled) Error() string {
	if c.Reason == "" {
		return "cancelled"
	}
	return "cancelled: " + c.Reason
}

// LeaseLost ends an attempt because the server said that it isn't this agent's any more. No
// completion is sent for it; its log still ships.
type LeaseLost struct {
	Err error // the server's answer
}

func (l *LeaseLost) Error() string { return fmt.Sprintf("lease lost: %v", l.Err) }
func (l *LeaseLost) Unwrap() error { return l.Err }

// LeaseExpired ends an attempt because the trust window is about to close: the server could not be
// heard for Silence, and may give the job to someone else in Grace plus the time to kill.
type LeaseExpired struct {
	Silence time.Duration
	Grace   time.Duration
	Err     error // of the last heartbeat; nil if it is still under way
}

func (l *LeaseExpired) Error() string {
	s := fmt.Sprintf("lease expired: no heartbeat was answered for %v", l.Silence.Round(time.Millisecond))
	if l.Err != nil {
		s += ": " + l.Err.Error()
	}
	return s
}
func (l *LeaseExpired) Unwrap() error { return l.Err }

// lost says whether the server's answer ends the lease for good. not_found is the job that the
// server doesn't know: there is no lease to keep either. Revoked is left out: it can be undone
// while the window is open.
func lost(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.CodeLeaseLost || code == protocol.CodeNotFound
}

// GraceFor is the time that the attempt's processes get between SIGTERM and SIGKILL when its
// context ended with cause (nil, or one of another owner: the job's own grace, capped for an exclusive job).
func (k *Keeper) GraceFor(cause error) time.Duration {
	if c, ok := errors.AsType[*Cancelled](cause); ok {
		return c.Grace
	}
	if e, ok := errors.AsType[*LeaseExpired](cause); ok {
		return e.Grace
	}
	if _, ok := errors.AsType[*LeaseLost](cause); ok && k.cfg.Exclusive {
		return 0 // someone else may have the job already
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.graceLocked()
}
