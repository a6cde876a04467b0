package adminclient

import (
	"encoding/json"
	"time"

	"agentd/agent/protocol"
)

// Submission is a new job. Zero values are left to the server's defaults.
type Submission struct {
	Type           string             `json:"type"`
	Payload        json.RawMessage    `json:"payload,omitempty"`
	Env            map[string]string  `json:"env,omitempty"`
	AgentID        string             `json:"agentId,omitempty"`
	Labels         map[string]string  `json:"labels,omitempty"`
	MaxAttempts    int                `json:"maxAttempts,omitempty"`
	RetryOn        []protocol.Outcome `json:"retryOn,omitempty"`
	Timeout        protocol.Millis    `json:"timeoutMs,omitempty"`
	Grace          *protocol.Millis   `json:"graceMs,omitempty"` // nil = the server's default; 0 = none
	Exclusive      bool               `json:"exclusive,omitempty"`
	IdempotencyKey string             `json:"idempotencyKey,omitempty"`
}

// Job is a job as the server tells it, oldest attempt first.
type Job struct {
	ID              string            `json:"id"`
	Type            string            `json:"type"`
	Status          string            `json:"status"`
	Reason          string            `json:"reason"` // why it waits, or how it ended
	Payload         json.RawMessage   `json:"payload,omitempty"`
	Labels          map[string]string `json:"labels"`
	AgentID         string            `json:"agentId"` // pinned to; empty: any
	MaxAttempts     int               `json:"maxAttempts"`
	RetryOn         []string          `json:"retryOn"`
	Timeout         protocol.Millis   `json:"timeoutMs"`
	Grace           protocol.Millis   `json:"graceMs"`
	Exclusive       bool              `json:"exclusive"`
	CreatedAt       time.Time         `json:"createdAt"`
	CancelRequested bool              `json:"cancelRequested"`
	CancelReason    string            `json:"cancelReason,omitempty"`
	Attempts        []Attempt         `json:"attempts"`
}

// Settled says whether the job has ended for good (but for a retry).
func (j Job) Settled() bool {
	switch j.Status {
	case "succeeded", "failed", "cancelled", "timedOut":
		return true
	}
	return false
}

// Last is the newest attempt, nil if there was none.
func (j Job) Last() *Attempt {
	if len(j.Attempts) == 0 {
		return nil
	}
	return &j.Attempts[len(j.Attempts)-1]
}

// Attempt finds an attempt by its number, nil if there is none.
func (j Job) Attempt(n int64) *Attempt {
	for i := range j.Attempts {
		if j.Attempts[i].Number == n {
			return &j.Attempts[i]
		}
	}
	return nil
}

// Attempt is one offer of a job and what became of it.
type Attempt struct {
	Number       int64           `json:"attempt"`
	State        string          `json:"state"`
	AgentID      string          `json:"agentId"`
	ExitCode     int             `json:"exitCode"`
	Signal       string          `json:"signal"`
	Error        string          `json:"error"`
	Result       json.RawMessage `json:"result,omitempty"`
	StartedAt    time.Time       `json:"startedAt,omitzero"`
	FinishedAt   time.Time       `json:"finishedAt,omitzero"`
	LogNext      int64           `json:"logNext"`
	LogRecords   *int64          `json:"logRecords"` // null while unknown
	LogsComplete bool            `json:"logsComplete"`
	SpooledBytes int64           `json:"spooledBytes"`
}

// Over says whether the attempt has ended.
func (a Attempt) Over() bool { return a.State != "offered" && a.State != "running" }

// LogEnded says that nothing more is to be waited for in the attempt's log: all of it is
// stored, or the attempt is over and nobody will ever say how long its log is.
func (a Attempt) LogEnded() bool {
	return a.LogsComplete || a.Over() && a.LogRecords == nil
}

// JobFilter selects a page of jobs, oldest first.
type JobFilter struct {
	Status  string
	AgentID string // pinned to or run by
	Type    string
	Limit   int    // 0: the server's default
	After   string // the last page's Next
}

// Page is one page of a list; Next is empty on the last.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next"`
}

// Agent is a linked agent.
type Agent struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Labels     map[string]string `json:"labels"`
	Types      []string          `json:"types"`
	Connectors []string          `json:"connectors"`
	Version    string            `json:"version"`
	OS         string            `json:"os,omitempty"`
	Arch       string            `json:"arch,omitempty"`
	ProcessID  string            `json:"processId,omitempty"`
	CreatedAt  time.Time         `json:"createdAt,omitzero"`
	LastSeenAt time.Time         `json:"lastSeenAt,omitzero"`
	Online     bool              `json:"online"` // the reference control plane's own addition
	Revoked    bool              `json:"revoked"`
}

// TokenRequest asks for an enrolment token.
type TokenRequest struct {
	TTL     protocol.Millis `json:"ttlMs,omitempty"`   // 0: the server's default
	MaxUses int             `json:"maxUses,omitempty"` // 0: the server's default, one
	AgentID string          `json:"agentId,omitempty"` // the id whose lost state the token may take over
}

// Query is a question to an agent's connector. It is written nowhere.
type Query struct {
	Type      string          `json:"type"`
	Connector string          `json:"connector"`
	Query     json.RawMessage `json:"query"`
	Timeout   protocol.Millis `json:"timeoutMs,omitempty"`
}

// LogRecord is a record with its number.
type LogRecord struct {
	N int64
	protocol.Record
}

// Next is the number after the record.
func (r LogRecord) Next() int64 { return r.N + r.Numbers() }
