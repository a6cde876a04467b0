package rules

import (
	"cmp"
	"strconv"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// Complete settles the attempt that ref names with c, and the job with it unless it is to be
// tried again. The same outcome again changes nothing but an unknown log length.
func (s *State) Complete(n *store.NewJob, ref store.Ref, c protocol.Completion, now time.Time) (changed bool, err error) {
	a := s.Claimed(ref)
	if a == nil {
		return false, store.ErrLeaseLost
	}
	if a.State.Over() {
		if a.State != store.AttemptState(c.Outcome) {
			return false, store.ErrLeaseLost
		}
		// Most of all the attempt that the reaper ended as lost: its agent knows how long the log is.
		if a.LogRecords != nil {
			return false, nil
		}
		a.LogRecords = new(c.LogRecords)
		a.Error = cmp.Or(c.Error, a.Error)
		return true, nil
	}
	a.Accepted = true // an offer that was completed without being accepted uses an attempt, too
	a.State = store.AttemptState(c.Outcome)
	a.ExitCode, a.Signal, a.Error, a.Result = c.ExitCode, c.Signal, c.Error, c.Result
	a.LogRecords = new(c.LogRecords)
	if !c.StartedAt.IsZero() {
		a.StartedAt = c.StartedAt
	}
	a.FinishedAt = c.FinishedAt
	if a.FinishedAt.IsZero() {
		a.FinishedAt = now
	}
	s.settle(n, c.Outcome, reason(c))
	return true, nil
}

// settle moves the job on after its live attempt ended with o.
func (s *State) settle(n *store.NewJob, o protocol.Outcome, why string) {
	if s.retryable(n, o) {
		s.Status, s.Reason = store.Pending, ""
		return
	}
	s.Reason = why
	switch o {
	case protocol.Succeeded:
		s.Status = store.JobSucceeded
	case protocol.Failed:
		s.Status = store.JobFailed
	case protocol.TimedOut:
		s.Status = store.JobTimedOut
	case protocol.Cancelled:
		s.Status, s.Reason = store.JobCancelled, cmp.Or(s.CancelReason, why)
	case protocol.Lost:
		s.Status = store.JobFailed
		if s.CancelRequested {
			s.Status, s.Reason = store.JobCancelled, cmp.Or(s.CancelReason, why)
		}
	default:
		panic("BUG: unknown outcome " + string(o))
	}
}

func reason(c protocol.Completion) string {
	switch {
	case c.Outcome == protocol.Succeeded:
		return ""
	case c.Error != "":
		return c.Error
	case c.Signal != "":
		return "killed by " + c.Signal
	case c.Outcome == protocol.Failed:
		return "exit code " + strconv.Itoa(c.ExitCode)
	default:
		return string(c.Outcome)
	}
}

// Release gives the attempt back. A repeat changes nothing.
func (s *State) Release(ref store.Ref, reason string, now time.Time) (changed bool, err error) {
	a := s.Claimed(ref)
	switch {
	case a == nil:
		return false, store.ErrLeaseLost
	case a.State == store.AttemptReleased:
		return false, nil
	case a.State.Over():
		return false, store.ErrLeaseLost
	}
	a.State, a.FinishedAt, a.Error = store.AttemptReleased, now, reason
	if s.CancelRequested {
		s.Status, s.Reason = store.JobCancelled, s.CancelReason
	} else {
		s.Status = store.Pending
	}
	return true, nil
}

// Cancel ends a job that doesn't run, and asks for the end of one that does. The first reason wins.
func (s *State) Cancel(reason string, now time.Time) (changed bool) {
	if s.Status.Settled() || s.CancelRequested {
		return false
	}
	s.CancelRequested, s.CancelReason = true, reason
	if s.Status == store.Running {
		return true
	}
	if a := s.Live(); a != nil {
		a.State, a.FinishedAt = store.AttemptCancelled, now
	}
	s.Status, s.Reason = store.JobCancelled, reason
	return true
}

// Retry makes a settled job that didn't succeed pending again, good for at least one more attempt.
func (s *State) Retry() error {
	if !s.Status.Settled() || s.Status == store.JobSucceeded {
		return store.ErrConflict
	}
	s.Status, s.Reason = store.Pending, ""
	s.CancelRequested, s.CancelReason = false, ""
	s.MaxAttempts = max(s.MaxAttempts, s.Used()+1)
	return nil
}

// LeaseRanOut is the error of an attempt that the reaper ended.
const LeaseRanOut = "the lease ran out: no heartbeat arrived in time"

// Expire ends the live attempt because its lease ran out.
func (s *State) Expire(n *store.NewJob, now time.Time) {
	a := s.Live()
	if a == nil {
		panic("BUG: nothing to expire in a job that is " + string(s.Status))
	}
	a.FinishedAt = now
	if a.State == store.AttemptOffered {
		a.State = store.AttemptLapsed
		s.Status = store.Pending
		return
	}
	a.State, a.Error = store.AttemptLost, LeaseRanOut
	s.settle(n, protocol.Lost, LeaseRanOut)
}

// SetLogLength notes that the attempt's log ends at records.
func (s *State) SetLogLength(attempt, records int64) (changed bool) {
	a := s.Find(attempt)
	if a == nil || a.LogRecords != nil && *a.LogRecords == records {
		return false
	}
	a.LogRecords = new(records)
	return true
}
