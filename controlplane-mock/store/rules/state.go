package rules

import (
	"slices"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// maxAttemptsKept bounds what a job that is offered and lapses for ever can grow to. Only
// attempts that don't count (lapsed, released) are forgotten, the oldest first; numbers go on.
const maxAttemptsKept = 128

// State is what changes of a job. It is stored as JSON, results apart.
type State struct {
	Status          store.Status    `json:"status"`
	Reason          string          `json:"reason,omitempty"`
	CancelRequested bool            `json:"cancelRequested,omitempty"`
	CancelReason    string          `json:"cancelReason,omitempty"`
	MaxAttempts     int             `json:"maxAttempts"` // the submission's, raised by Retry
	Last            int64           `json:"last"`        // the number of the newest attempt ever made
	Attempts        []store.Attempt `json:"attempts,omitempty"`
}

// New is the state of a job that was just submitted.
func New(n *store.NewJob) State {
	return State{Status: store.Pending, MaxAttempts: n.MaxAttempts}
}

// Clone copies s so that changing the copy leaves s as it is.
func (s *State) Clone() State {
	c := *s
	c.Attempts = slices.Clone(s.Attempts)
	return c
}

// Live is the attempt that isn't over, or nil.
func (s *State) Live() *store.Attempt {
	if len(s.Attempts) == 0 {
		return nil
	}
	if a := &s.Attempts[len(s.Attempts)-1]; !a.State.Over() {
		return a
	}
	return nil
}

// Find is the attempt with that number, or nil.
func (s *State) Find(number int64) *store.Attempt {
	i, ok := slices.BinarySearchFunc(s.Attempts, number, func(a store.Attempt, n int64) int {
		return int(a.Number - n)
	})
	if !ok {
		return nil
	}
	return &s.Attempts[i]
}

// Claimed is the attempt that ref names, if it was given to ref's agent; else nil.
func (s *State) Claimed(ref store.Ref) *store.Attempt {
	if a := s.Find(ref.Attempt); a != nil && a.AgentID == ref.AgentID {
		return a
	}
	return nil
}

// Used counts the attempts that use up MaxAttempts.
func (s *State) Used() int {
	n := 0
	for i := range s.Attempts {
		if a := &s.Attempts[i]; a.Accepted && a.State != store.AttemptReleased {
			n++
		}
	}
	return n
}

// Offer makes the next attempt of a pending job. The caller has seen that it is pending.
func (s *State) Offer(agentID, pollID string, now time.Time) {
	if s.Status != store.Pending {
		panic("BUG: an offer of a job that is " + string(s.Status))
	}
	s.Last++
	s.Status = store.Offered
	s.Add(store.Attempt{Number: s.Last, State: store.AttemptOffered, AgentID: agentID, PollID: pollID, OfferedAt: now})
}

// Add appends an attempt. (For stores that keep the live one apart.)
func (s *State) Add(a store.Attempt) {
	s.Attempts = append(s.Attempts, a)
	if len(s.Attempts) > maxAttemptsKept {
		i := slices.IndexFunc(s.Attempts, func(a store.Attempt) bool {
			return a.State == store.AttemptLapsed || a.State == store.AttemptReleased
		})
		if i >= 0 {
			s.Attempts = slices.Delete(s.Attempts, i, i+1)
		}
	}
}

// Renew answers whether ref holds the live lease, accepting the offer if it is one; changed
// says that there is something to write.
func (s *State) Renew(ref store.Ref, now time.Time) (changed bool, err error) {
	a := s.Claimed(ref)
	if a == nil || a.State.Over() {
		return false, store.ErrLeaseLost
	}
	if a.State == store.AttemptRunning {
		return false, nil
	}
	a.State, a.Accepted, a.StartedAt = store.AttemptRunning, true, now
	s.Status = store.Running
	return true, nil
}

// retryable says whether an attempt that ended so leads to another.
func (s *State) retryable(n *store.NewJob, o protocol.Outcome) bool {
	return !s.CancelRequested && slices.Contains(n.RetryOn, o) && s.Used() < s.MaxAttempts
}
