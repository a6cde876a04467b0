// Package store says what the reference control plane keeps, and what each change to it must
// guarantee. Every method that changes something is one transaction and a compare-and-set:
// it holds for any number of callers and, on a shared database, any number of servers.
//
// Times: a store decides with its own clock only (the embedded one with a monotonic clock, so
// that a wall clock set back delays nothing; a shared one with the database's). Callers pass
// durations, never instants. Instants that come out are for people to read.
//
// Secrets: credentials come in as SHA-256 sums and are never stored otherwise. A lease token is derived by the server
// from the job, the attempt and one of the store's secrets, so whoever shows it was given that attempt: the server
// checks it, and a store knows nothing of it.
package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentd/agent/protocol"
)

// Errors that a Store answers with. Anything else is a fault of the store itself: the server
// says unavailable, and the caller comes back.
var (
	ErrNotFound  = errors.New("store: not found")
	ErrLeaseLost = errors.New("store: lease lost")      // the attempt is over, or never was the caller's
	ErrConflict  = errors.New("store: conflict")        // same idempotency key, other body; a retry of what can't be retried
	ErrDenied    = errors.New("store: denied")          // link: bad token, unknown nonce or id, wrong binding: all alike
	ErrIdentity  = errors.New("store: identity in use") // link: a known id with another key
	ErrRevoked   = errors.New("store: agent revoked")
	ErrNoJob     = errors.New("store: no matching job")
	ErrStopped   = errors.New("store: closed")
)

// GapError refuses a log batch that starts above what is stored.
type GapError struct{ Next int64 }

func (e *GapError) Error() string { return fmt.Sprintf("store: log gap: next is %d", e.Next) }

// Sum is the SHA-256 of a credential. As text, in JSON and in keys, it is hexadecimal.
type Sum [32]byte

// MarshalText writes s in hexadecimal.
func (s Sum) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, s[:]), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Sum) UnmarshalText(text []byte) error {
	if len(text) != 2*len(s) {
		return errors.New("store: a sum must have 64 hexadecimal digits")
	}
	_, err := hex.Decode(s[:], text)
	return err
}

func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// Store is everything that outlives a request. Implementations pass storetest.Run.
// All methods may be called concurrently.
type Store interface {
	Identities
	Jobs
	Logs

	// ServerID is made once, at the first start on an empty store, and names the control plane.
	ServerID(ctx context.Context) (string, error)
	// Secret returns the named 32-byte secret, making it at first use. (Lease tokens are derived from one.)
	Secret(ctx context.Context, name string) ([]byte, error)
	// Watch calls f for each change until ctx ends, on every instance that shares the store.
	// An event may come twice or, after a lost connection, not at all: then f gets EventResync.
	// f must not block. Watch returns when ctx ends.
	Watch(ctx context.Context, f func(Event)) error
	// Ping answers whether the store can serve now.
	Ping(ctx context.Context) error
	Close() error
}

// EventKind says what changed.
type EventKind uint8

// The kinds of events.
const (
	EventResync       EventKind = iota // anything may have changed: look again
	EventJobPending                    // JobID can be leased
	EventJobChanged                    // JobID: cancel asked, attempt ended, settled
	EventLogAppended                   // JobID, Attempt: new records, or the log's length became known
	EventAgentChanged                  // AgentID: revoked, restored, keys expired, another current process, relabelled
)

// Event tells waiters to look again. It carries no state, so a stale one is harmless.
type Event struct {
	Kind    EventKind
	JobID   string
	Attempt int64
	AgentID string
	// Wants says what a pending job wants of an agent: it never changes. Nil: whoever needs to know asks the store.
	Wants *Wants `json:",omitzero"`
}

// Wants is which agents may lease a job.
type Wants struct {
	Type    string
	AgentID string            `json:",omitzero"` // empty: any
	Labels  map[string]string `json:",omitzero"` // that the agent must all have
}

// WantsOf is what n wants.
func WantsOf(n *NewJob) *Wants { return &Wants{n.Type, n.AgentID, n.Labels} }

// ---------------------------------------------------------------- identities

// Identities holds nonces, enrolment tokens, agents and their API keys.
type Identities interface {
	PutNonce(ctx context.Context, nonce Sum, publicKey []byte, ttl time.Duration) error
	// TakeNonce uses the nonce up: true once, if it is known, alive and bound to publicKey.
	TakeNonce(ctx context.Context, nonce Sum, publicKey []byte) (bool, error)

	PutToken(ctx context.Context, t Token) error // ErrNotFound: t.AgentID is unknown

	// Link settles who an agent is (protocol §2): first link, repeated link, re-link, take-over,
	// conflict, revoked. The signature has been checked. Answers ErrDenied, ErrIdentity, ErrRevoked.
	Link(ctx context.Context, p LinkParams) (Linked, error)

	// Authenticate finds the agent of an API key. ErrNotFound: no such key, or expired.
	// A revoked agent is returned with Revoked set.
	Authenticate(ctx context.Context, key Sum) (Auth, error)
	// Touch notes that the agent was seen. It may be kept in memory and written lazily.
	Touch(ctx context.Context, agentID string) error

	Agent(ctx context.Context, id string) (Agent, error)
	Agents(ctx context.Context, after string, limit int) (items []Agent, next string, err error)
	SetRevoked(ctx context.Context, id string, revoked bool) (Agent, error)
	ExpireKeys(ctx context.Context, id string) (Agent, error)
}

// Token is an enrolment token.
type Token struct {
	Sum     Sum
	TTL     time.Duration
	MaxUses int
	AgentID string // empty, or the id whose lost state it may take over
}

// LinkParams is a link whose proof was checked.
type LinkParams struct {
	Token      *Sum   // nil on a re-link by proof
	AgentID    string // as the agent sent it: empty on a first link
	NewAgentID string // used if a new agent is made
	PublicKey  []byte
	ProcessID  string
	Start      bool
	Info       AgentInfo
	Key        Sum           // the fresh API key's
	KeyTTL     time.Duration // its life
	KeyOverlap time.Duration // how long the same process's older keys stay valid (60 s)
}

// Linked is a settled link.
type Linked struct {
	Agent Agent
	First bool // answer 201, not 200
}

// AgentInfo is what an agent tells of itself.
type AgentInfo struct {
	Name       string            `json:"name"`
	Labels     map[string]string `json:"labels"`
	Types      []string          `json:"types"`
	Connectors []string          `json:"connectors"`
	Version    string            `json:"version"`
	OS         string            `json:"os"`
	Arch       string            `json:"arch"`
}

// Agent is a linked agent.
type Agent struct {
	ID string `json:"id"`
	AgentInfo
	ProcessID string    `json:"processId"` // the current process: the last one that linked with start
	Revoked   bool      `json:"revoked"`
	CreatedAt time.Time `json:"createdAt"`
	LastSeen  time.Time `json:"lastSeenAt"`
}

// Auth is who a key belongs to.
type Auth struct {
	Agent     Agent
	ProcessID string // the process that got this key
}

// ---------------------------------------------------------------- jobs

// Jobs is the state machine of protocol §3.
type Jobs interface {
	// Submit stores a new pending job. With an idempotency key: the same key and BodySum again
	// return the first job and created=false; another BodySum is ErrConflict.
	Submit(ctx context.Context, n NewJob) (job Job, created bool, err error)
	Job(ctx context.Context, id string) (Job, error)
	Jobs(ctx context.Context, f JobFilter) (items []Job, next string, err error) // oldest first

	// Lease offers the oldest matching pending job, or ErrNoJob. While an offer made to
	// (AgentID, PollID) is neither accepted nor lapsed, it is returned again, not renewed.
	// One job goes to exactly one caller.
	Lease(ctx context.Context, p LeaseParams) (Offer, error)
	// Renew accepts an offer (the first time) and extends the lease to ttl from now.
	// ErrNotFound: no such job. ErrLeaseLost: anything else that is not the caller's live lease.
	Renew(ctx context.Context, ref Ref, ttl time.Duration, beat Beat) (Lease, error)
	// Complete settles the attempt. The same outcome again is nil, always; see protocol §3.
	Complete(ctx context.Context, ref Ref, c protocol.Completion) error
	// Release gives back an offer, or an accepted job that has not started. A repeat is nil.
	Release(ctx context.Context, ref Ref, reason string) error

	// Cancel ends a pending or offered job, or asks for a running one's end; settled: unchanged.
	Cancel(ctx context.Context, id, reason string) (Job, error)
	// Retry gives a settled job that didn't succeed one more attempt; any other: ErrConflict.
	Retry(ctx context.Context, id string) (Job, error)

	// Reap ends attempts and offers whose lease ran out, and returns how many. A store that has
	// just started, or whose database was away, gives every lease that was alive one full TTL first.
	Reap(ctx context.Context, ttl time.Duration) (int, error)
	// Rest makes Reap spare all leases for d from now (used by simulated outages).
	Rest(d time.Duration)
}

// NewJob is a submission whose fields were checked and defaulted.
type NewJob struct {
	ID             string
	Type           string
	Payload        json.RawMessage
	Env            map[string]string
	AgentID        string
	Labels         map[string]string
	MaxAttempts    int
	RetryOn        []protocol.Outcome
	Timeout        time.Duration
	Grace          time.Duration
	Exclusive      bool
	IdempotencyKey string
	BodySum        Sum // of the canonical submission, to tell a repeat from another body
}

// Status is a job's state.
type Status string

// The states of a job: pending → offered → running → one of the last four.
const (
	Pending      Status = "pending"
	Offered      Status = "offered"
	Running      Status = "running"
	JobSucceeded Status = "succeeded"
	JobFailed    Status = "failed"
	JobCancelled Status = "cancelled"
	JobTimedOut  Status = "timedOut"
)

// Settled says whether a job in state s has ended for good (but for Retry).
func (s Status) Settled() bool {
	return s == JobSucceeded || s == JobFailed || s == JobCancelled || s == JobTimedOut
}

// AttemptState is an attempt's state.
type AttemptState string

// The states of an attempt: offered → running → how it ended.
const (
	AttemptOffered   AttemptState = "offered"
	AttemptRunning   AttemptState = "running"
	AttemptSucceeded AttemptState = "succeeded"
	AttemptFailed    AttemptState = "failed"
	AttemptCancelled AttemptState = "cancelled"
	AttemptTimedOut  AttemptState = "timedOut"
	AttemptLost      AttemptState = "lost"
	AttemptReleased  AttemptState = "released" // given back: doesn't count against MaxAttempts
	AttemptLapsed    AttemptState = "lapsed"   // never accepted: doesn't count either
)

// Over says whether the attempt has ended.
func (s AttemptState) Over() bool { return s != AttemptOffered && s != AttemptRunning }

// Job is a job with its attempts, oldest attempt first.
type Job struct {
	NewJob
	Status          Status
	Reason          string // how it ended; why a pending one waits is the server's to say
	CancelRequested bool
	CancelReason    string
	CreatedAt       time.Time
	Attempts        []Attempt
}

// Attempt is one offer and what became of it. (The tags are for stores that keep it as JSON; a null
// Result would read back as one.)
type Attempt struct {
	Number       int64           `json:",omitzero"`
	State        AttemptState    `json:",omitzero"`
	AgentID      string          `json:",omitzero"`
	PollID       string          `json:",omitzero"`
	Accepted     bool            `json:",omitzero"` // counts against MaxAttempts unless released
	ExitCode     int             `json:",omitzero"`
	Signal       string          `json:",omitzero"`
	Error        string          `json:",omitzero"`
	Result       json.RawMessage `json:",omitzero"`
	OfferedAt    time.Time       `json:",omitzero"`
	StartedAt    time.Time       `json:",omitzero"` // accepted; the agent's own stamp once completed
	FinishedAt   time.Time       `json:",omitzero"`
	LogNext      int64           `json:",omitzero"` // records stored
	LogRecords   *int64          `json:",omitzero"` // nil while unknown
	SpooledBytes int64           `json:",omitzero"` // as the last heartbeat said
}

// LogsComplete says that the log's length is known and all of it is stored.
func (a Attempt) LogsComplete() bool { return a.LogRecords != nil && a.LogNext >= *a.LogRecords }

// JobFilter selects a page of jobs. AgentID: pinned to or run by.
type JobFilter struct {
	Status  Status
	AgentID string
	Type    string
	After   string
	Limit   int
}

// LeaseParams says who asks for what.
type LeaseParams struct {
	AgentID string
	Labels  map[string]string // the agent's: a job's labels must all be among them
	Types   []string
	PollID  string
	TTL     time.Duration
}

// Offer is a leased job: the attempt is offered, not yet accepted.
type Offer struct {
	Job     Job // Attempts may be left out
	Attempt int64
}

// Ref names an attempt, whose lease token the caller has shown. With a wrong one it is an attempt that no job has.
type Ref struct {
	JobID   string
	Attempt int64
	AgentID string // the authenticated agent
}

// Beat is what a heartbeat says of the agent's backlog.
type Beat struct {
	SpooledBytes    int64
	OldestUnshipped time.Duration
	Urgent          bool // somebody waits for the answer: a store that gathers renewals shouldn't wait for more
}

// Lease is the state of a live lease.
type Lease struct {
	CancelRequested bool
	CancelReason    string
	Grace           time.Duration
}

// ---------------------------------------------------------------- logs

// Logs keeps the records of attempts: dense numbers from 0.
type Logs interface {
	// AppendLog stores a batch durably (a power cut doesn't undo it) before it returns, whole or not
	// at all, and answers what is stored now. Below next is dropped, at next appended, above: *GapError.
	// Count 0 stores nothing. Final sets the log's length to First+Count.
	// ErrNotFound: unknown job or attempt, or another agent's.
	AppendLog(ctx context.Context, ref Ref, b LogBatch) (next int64, err error)
	LogNext(ctx context.Context, ref Ref) (int64, error)
	// ReadLog returns stored batches that cover numbers ≥ from, in order, until about maxBytes of
	// body; none when there are none yet. The first may begin below from.
	ReadLog(ctx context.Context, jobID string, attempt, from int64, maxBytes int) ([]LogBatch, error)
}

// LogBatch is a run of records that was checked by the server: it is stored as it came.
type LogBatch struct {
	First, Count int64
	Final        bool
	Encoding     string    // identity, gzip, zstd, snappy
	Body         []byte    // encoded NDJSON
	Decoded      int64     // bytes once decoded
	ReceivedAt   time.Time // set by the store; the time of gap records
	// Trim returns the part of the batch from next on. Called inside the transaction, only when
	// First < next < First+Count. Nil in what ReadLog returns.
	Trim func(next int64) (LogBatch, error)
}

// Expired stands for records that were dropped because their time was over: a gap, so that a reader sees how many there were.
func Expired(first, count int64) LogBatch {
	body := fmt.Appendf(nil, `{"s":"agent","gap":%d,"reason":"expired"}`+"\n", count)
	return LogBatch{First: first, Count: count, Encoding: "identity", Body: body, Decoded: int64(len(body)), ReceivedAt: time.Now()}
}
