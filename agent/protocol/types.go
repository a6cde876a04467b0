package protocol

import (
	"encoding/json"
	"time"
)

// Millis is a duration on the wire: relative, in whole milliseconds. No decision is ever
// taken by comparing one machine's wall clock with another's, so the protocol has no deadlines.
type Millis int64

// Duration is m as a time.Duration.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// ToMillis rounds d up to whole milliseconds, so that a positive wait never becomes none at all.
func ToMillis(d time.Duration) Millis {
	return Millis((d + time.Millisecond - 1) / time.Millisecond)
}

// ChallengeRequest asks for a nonce (POST /agent/v1/link/challenge). It carries no credential.
type ChallengeRequest struct {
	PublicKey []byte `json:"publicKey" wire:"required"` // Ed25519, 32 bytes
	AgentID   string `json:"agentId"`                   // empty on a first link
}

// Challenge is a single-use nonce, bound to the public key that asked for it.
type Challenge struct {
	Nonce     string `json:"nonce"       wire:"required"`
	ServerID  string `json:"serverId"    wire:"required"` // names the control plane, not the instance
	ExpiresIn Millis `json:"expiresInMs" wire:"required"`
}

// LinkRequest proves possession of a key pair and tells who the agent is (POST /agent/v1/link).
type LinkRequest struct {
	AgentID    string            `json:"agentId"`
	PublicKey  []byte            `json:"publicKey"  wire:"required"`
	Name       string            `json:"name"`
	Labels     map[string]string `json:"labels"`
	Types      []string          `json:"types"` // job and query types together
	Connectors []string          `json:"connectors"`
	Version    string            `json:"version"`
	OS         string            `json:"os"`
	Arch       string            `json:"arch"`
	ProcessID  string            `json:"processId"  wire:"required"` // "<boot id>.<random per process>", at most 128 characters
	Start      bool              `json:"start"      wire:"required"` // true on a process's first link only
	Nonce      string            `json:"nonce"      wire:"required"`
	Signature  []byte            `json:"signature"  wire:"required"` // over LinkMessage
}

// Link is what an agent gets for its proof: its id, a fresh API key, and the server's pace.
type Link struct {
	AgentID      string   `json:"agentId"           wire:"required"`
	APIKey       string   `json:"apiKey"            wire:"required"`
	KeyExpiresIn Millis   `json:"apiKeyExpiresInMs" wire:"required"`
	LeaseTTL     Millis   `json:"leaseTtlMs"        wire:"required"`
	Heartbeat    Millis   `json:"heartbeatMs"       wire:"required"`
	PollWait     Millis   `json:"pollWaitMs"        wire:"required"`
	MaxLogBody   int64    `json:"maxLogBody"` // bytes as sent
	LogEncodings []string `json:"logEncodings"`
	ServerID     string   `json:"serverId"          wire:"required"`
}

// Job is an offer (the 200 of GET /agent/v1/jobs/next). It becomes a running attempt only
// when its first heartbeat has been answered.
type Job struct {
	ID         string            `json:"id"         wire:"required"`
	Type       string            `json:"type"       wire:"required"`
	Attempt    int64             `json:"attempt"    wire:"required"` // a new number for every offer
	LeaseToken string            `json:"leaseToken" wire:"required"`
	LeaseTTL   Millis            `json:"leaseTtlMs" wire:"required"`
	Payload    json.RawMessage   `json:"payload"`
	Env        map[string]string `json:"env"`
	Timeout    Millis            `json:"timeoutMs"` // 0 = none
	Grace      Millis            `json:"graceMs"`
	Exclusive  bool              `json:"exclusive"`
	CreatedAt  time.Time         `json:"createdAt"`
}

// AttemptRef names one attempt and proves the right to speak for it.
type AttemptRef struct {
	JobID      string
	Attempt    int64
	LeaseToken string // a secret: never logged
}

// HeartbeatRequest keeps a lease (POST /agent/v1/jobs/{id}/heartbeat).
type HeartbeatRequest struct {
	Attempt         int64  `json:"attempt"           wire:"required"`
	LeaseToken      string `json:"leaseToken"        wire:"required"`
	SpooledBytes    int64  `json:"spooledBytes"`
	OldestUnshipped Millis `json:"oldestUnshippedMs"`
}

// Heartbeat is the answer to a heartbeat: the lease was renewed when the request arrived and again as it was answered.
type Heartbeat struct {
	LeaseTTL  Millis  `json:"leaseTtlMs"  wire:"required"`
	Heartbeat Millis  `json:"heartbeatMs" wire:"required"`
	Cancel    *Cancel `json:"cancel"` // null while nobody asked
}

// Cancel asks the agent to end a job: SIGTERM, the grace period, SIGKILL.
type Cancel struct {
	Reason string `json:"reason"`
	Grace  Millis `json:"graceMs"`
}

// Outcome is how an attempt ended.
type Outcome string

// The outcomes an agent can report.
const (
	Succeeded Outcome = "succeeded"
	Failed    Outcome = "failed"
	Cancelled Outcome = "cancelled"
	TimedOut  Outcome = "timedOut"
	Lost      Outcome = "lost" // the agent died, the host rebooted, an exclusive lease ran out, or a drain ended the job
)

// Completion reports an attempt's end (POST /agent/v1/jobs/{id}/complete). Repeating it is harmless.
type Completion struct {
	Attempt    int64           `json:"attempt"             wire:"required"`
	LeaseToken string          `json:"leaseToken"          wire:"required"`
	Outcome    Outcome         `json:"outcome"             wire:"required"`
	ExitCode   int             `json:"exitCode"`
	Signal     string          `json:"signal"` // a name: SIGKILL
	Error      string          `json:"error"`
	Result     json.RawMessage `json:"result,omitempty"`
	LogRecords int64           `json:"logRecords"          wire:"required"` // how many record numbers the attempt's log covers
	StartedAt  time.Time       `json:"startedAt,omitzero"`
	FinishedAt time.Time       `json:"finishedAt,omitzero"`
}

// Release gives an offer back, or an accepted job that has not started (POST /agent/v1/jobs/{id}/release).
type Release struct {
	Attempt    int64  `json:"attempt"    wire:"required"`
	LeaseToken string `json:"leaseToken" wire:"required"`
	Reason     string `json:"reason"`
}

// Next is the server's word on a log: everything below it is durably stored. Nothing else lets the agent forget.
type Next struct {
	Next int64 `json:"next" wire:"required"`
}

// Stream says who wrote a record.
type Stream string

// The streams of a log.
const (
	Stdout Stream = "out"
	Stderr Stream = "err"
	Remark Stream = "agent" // the agent's own remarks
)

// Record is one line of a log, a piece of a line that is too long, or a gap.
// Exactly one of Text, Bytes and Gap carries the content: Bytes where the line is not valid UTF-8.
type Record struct {
	Time   int64 // microseconds since the epoch, for people to read
	Stream Stream
	Text   string
	Bytes  []byte
	Part   bool   // the line goes on in the same stream's next record
	EOF    bool   // the stream ended here without a newline
	Gap    int64  // that many record numbers are missing; every other record covers one
	Reason string // of a gap
}

// Numbers is how many record numbers r covers.
func (r Record) Numbers() int64 {
	if r.Gap > 0 {
		return r.Gap
	}
	return 1
}

// Gap reasons that the agent writes. The list is open: a reader shows what it gets.
const (
	GapSpoolFull  = "spoolFull"
	GapDeadLetter = "deadLetter"
	GapDamaged    = "damaged" // a page, batch or epoch that could not be read back
)
