package controlplane

import (
	"encoding/json"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// JobView is a job as the admin side shows it. Its env is left out: that is where secrets are.
type JobView struct {
	ID              string             `json:"id"`
	Type            string             `json:"type"`
	Status          store.Status       `json:"status"`
	Reason          string             `json:"reason"` // why it is pending, or how it ended
	Payload         json.RawMessage    `json:"payload"`
	Labels          map[string]string  `json:"labels"`
	AgentID         string             `json:"agentId"`
	MaxAttempts     int                `json:"maxAttempts"`
	RetryOn         []protocol.Outcome `json:"retryOn"`
	Timeout         protocol.Millis    `json:"timeoutMs"`
	Grace           protocol.Millis    `json:"graceMs"`
	Exclusive       bool               `json:"exclusive"`
	CreatedAt       time.Time          `json:"createdAt"`
	CancelRequested bool               `json:"cancelRequested"`
	CancelReason    string             `json:"cancelReason"`
	Attempts        []AttemptView      `json:"attempts"`
}

// AttemptView is one attempt of a job. Times are null while unknown.
type AttemptView struct {
	Attempt      int64              `json:"attempt"`
	State        store.AttemptState `json:"state"`
	AgentID      string             `json:"agentId"`
	ExitCode     int                `json:"exitCode"`
	Signal       string             `json:"signal"`
	Error        string             `json:"error"`
	Result       json.RawMessage    `json:"result"`
	StartedAt    *time.Time         `json:"startedAt"`
	FinishedAt   *time.Time         `json:"finishedAt"`
	LogNext      int64              `json:"logNext"`
	LogRecords   *int64             `json:"logRecords"` // null while unknown
	LogsComplete bool               `json:"logsComplete"`
	SpooledBytes int64              `json:"spooledBytes"`
}

// AgentView is an agent as the admin side shows it.
type AgentView struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Labels     map[string]string `json:"labels"`
	Types      []string          `json:"types"`
	Connectors []string          `json:"connectors"`
	Version    string            `json:"version"`
	OS         string            `json:"os"`
	Arch       string            `json:"arch"`
	ProcessID  string            `json:"processId"`
	CreatedAt  time.Time         `json:"createdAt"`
	LastSeenAt time.Time         `json:"lastSeenAt"`
	Online     bool              `json:"online"`
	Revoked    bool              `json:"revoked"`
}

// Page is one page of a listing. Next is empty on the last one.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next"`
}

func viewJob(j store.Job, reason string) JobView {
	v := JobView{
		ID: j.ID, Type: j.Type, Status: j.Status, Reason: reason, Payload: rawOr(j.Payload, "{}"), Labels: mapOr(j.Labels),
		AgentID: j.AgentID, MaxAttempts: j.MaxAttempts, RetryOn: listOr(j.RetryOn), Timeout: protocol.ToMillis(j.Timeout),
		Grace: protocol.ToMillis(j.Grace), Exclusive: j.Exclusive, CreatedAt: j.CreatedAt,
		CancelRequested: j.CancelRequested, CancelReason: j.CancelReason, Attempts: make([]AttemptView, 0, len(j.Attempts)),
	}
	for _, a := range j.Attempts {
		v.Attempts = append(v.Attempts, AttemptView{
			Attempt: a.Number, State: a.State, AgentID: a.AgentID, ExitCode: a.ExitCode, Signal: a.Signal, Error: a.Error,
			Result: rawOr(a.Result, "null"), StartedAt: timeOr(a.StartedAt), FinishedAt: timeOr(a.FinishedAt),
			LogNext: a.LogNext, LogRecords: a.LogRecords, LogsComplete: a.LogsComplete(), SpooledBytes: a.SpooledBytes,
		})
	}
	return v
}

func viewAgent(a store.Agent) AgentView {
	return AgentView{
		ID: a.ID, Name: a.Name, Labels: mapOr(a.Labels), Types: listOr(a.Types), Connectors: listOr(a.Connectors),
		Version: a.Version, OS: a.OS, Arch: a.Arch, ProcessID: a.ProcessID,
		CreatedAt: a.CreatedAt, LastSeenAt: a.LastSeen, Online: online(a), Revoked: a.Revoked,
	}
}

func rawOr(v json.RawMessage, absent string) json.RawMessage {
	if len(v) == 0 {
		return json.RawMessage(absent)
	}
	return v
}

func mapOr(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func listOr[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func timeOr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
