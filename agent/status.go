package agent

import (
	"maps"
	"os"
	"slices"
	"time"

	"agentd/agent/identity"
	"agentd/shipper"
)

// Status is how the agent stands. It is what `agentd status --json` prints: fields are added, never renamed.
type Status struct {
	Name      string            `json:"name"`
	Version   string            `json:"version"`
	PID       int               `json:"pid"`
	Server    string            `json:"server"`
	AgentID   string            `json:"agentId"`
	State     string            `json:"state"`  // starting, working, full, draining, drained, refused, stopping
	Detail    string            `json:"detail"` // the state in words, and what to do about it
	Healthy   bool              `json:"healthy"`
	Faults    []string          `json:"faults"`
	UpForMs   int64             `json:"upForMs"`
	Labels    map[string]string `json:"labels"`
	Types     []string          `json:"types"`
	Link      LinkStatus        `json:"link"`
	Polls     PollStatus        `json:"polls"`
	Lateness  LatenessStatus    `json:"heartbeats"`
	MaxJobs   int               `json:"maxJobs"`
	Running   int               `json:"running"`   // attempts that are offered or running
	Reporting int               `json:"reporting"` // outcomes that the control plane hasn't acknowledged
	Jobs      []JobStatus       `json:"jobs"`
	Logs      shipper.Stats     `json:"logs"`
}

// LinkStatus is how the identity stands.
type LinkStatus struct {
	State          identity.State `json:"state"`
	Detail         string         `json:"detail"`
	ServerID       string         `json:"serverId"`
	KeyExpiresInMs int64          `json:"keyExpiresInMs"`
}

// PollStatus is how polling goes.
type PollStatus struct {
	Answered time.Time     `json:"answeredAt,omitzero"`
	Count    int64         `json:"answered"`
	Wait     time.Duration `json:"waitNs"`
	Learned  bool          `json:"shorterWaitLearned"` // a proxy on the way cuts longer polls
	Waiting  string        `json:"notAskingBecause"`   // why no job is asked for
	Err      string        `json:"error"`
	Failing  int           `json:"failedInARow"`
}

// LatenessStatus is how late heartbeats' answers were.
type LatenessStatus struct {
	Count int64         `json:"answered"`
	Last  time.Duration `json:"lastLatenessNs"`
	Worst time.Duration `json:"worstLatenessNs"`
}

// JobStatus is one attempt.
type JobStatus struct {
	Job     string                `json:"job"`
	Attempt int64                 `json:"attempt"`
	Type    string                `json:"type"`
	State   string                `json:"state"` // offered, running, reporting
	ForMs   int64                 `json:"forMs"`
	Log     *shipper.AttemptStats `json:"log,omitempty"`
}

// Status says how the agent stands. It never blocks on the network or the disk.
func (a *Agent) Status() Status {
	id, stats, full, deaf := a.ident.Status(), a.logs.Stats(), a.logs.Full(), a.pulse.deaf()
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Status{
		Name: a.cfg.Name, Version: a.cfg.Version, PID: os.Getpid(), Server: a.cfg.Server, AgentID: id.AgentID,
		Labels: maps.Clone(a.labels), Types: a.typesLocked(),
		Link:  LinkStatus{State: id.State, Detail: id.Words, ServerID: id.ServerID, KeyExpiresInMs: id.KeyLeftMs},
		Polls: a.polls, Lateness: a.late, MaxJobs: a.maxJobs, Logs: stats, Jobs: []JobStatus{}, Faults: []string{},
	}
	if !a.began.IsZero() {
		s.UpForMs = time.Since(a.began).Milliseconds()
	}
	s.Reporting = a.owed
	for _, k := range slices.Sorted(maps.Keys(a.attempts)) {
		r := a.attempts[k]
		if r.state == "reporting" {
			s.Reporting++
		} else {
			s.Running++
		}
		j := JobStatus{Job: r.job.ID, Attempt: r.job.Attempt, Type: r.job.Type, State: r.state, ForMs: time.Since(r.since).Milliseconds()}
		if st, ok := a.logs.AttemptStats(r.job.ID, r.job.Attempt); ok {
			j.Log = &st
		}
		s.Jobs = append(s.Jobs, j)
	}
	s.State, s.Detail = a.stateLocked(id, full)
	s.Faults = append(s.Faults, deaf...)
	if a.polls.Failing > 0 {
		s.Faults = append(s.Faults, "control plane not reachable: "+a.polls.Err)
	}
	if s.State == "full" || s.State == "refused" || s.State == "starting" {
		s.Faults = append(s.Faults, s.Detail)
	}
	s.Healthy = len(s.Faults) == 0
	return s
}

func (a *Agent) stateLocked(id identity.Status, full string) (state, detail string) {
	switch {
	case a.stopping:
		return "stopping", "running jobs end, no more are taken"
	case id.State == identity.Revoked || id.State == identity.Conflict || id.State == identity.Refused:
		return "refused", id.Words
	case a.polls.Answered.IsZero():
		return "starting", "no poll has been answered yet"
	case a.drained && len(a.attempts) == 0:
		return "drained", "nothing runs, no jobs are taken"
	case a.drained:
		return "draining", "running jobs go on, no more are taken"
	case full != "":
		return "full", full
	}
	return "working", ""
}

func (a *Agent) noteLateness(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.late.Count++
	a.late.Last, a.late.Worst = d, max(a.late.Worst, d)
}
