package journal

import (
	"errors"
	"time"

	"agentd/agent/protocol"
)

// Proc finds an attempt's processes again after a crash. Its fields are those of exec.Proc, so that one converts to the other.
type Proc struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootId"`
	Cgroup     string `json:"cgroup,omitempty"`
	WorkDir    string `json:"workDir"`
}

// Entry is one attempt: accepted, perhaps started, perhaps ended, and not yet settled with the server.
type Entry struct {
	JobID      string `json:"jobId"`
	Attempt    int64  `json:"attempt"`
	LeaseToken string `json:"leaseToken"` // a secret: the file is 0600
	Type       string `json:"type"`
	Exclusive  bool   `json:"exclusive,omitzero"`
	// BootID of the host when the attempt was accepted: another one at start means a reboot ended it.
	BootID     string    `json:"bootId"`
	AcceptedAt time.Time `json:"acceptedAt,omitzero"`
	StartedAt  time.Time `json:"startedAt,omitzero"` // zero: the command never ran
	Proc       Proc      `json:"proc,omitzero"`
	Log        LogState  `json:"log,omitzero"`
	// Completion is set once the attempt has ended; the entry stays until the server has settled it.
	Completion *protocol.Completion `json:"completion,omitempty"`
}

// Ref is the attempt's reference on the wire.
func (e *Entry) Ref() protocol.AttemptRef {
	return protocol.AttemptRef{JobID: e.JobID, Attempt: e.Attempt, LeaseToken: e.LeaseToken}
}

// LogState is what the journal knows of an attempt's log.
type LogState struct {
	Closed  bool  `json:"closed,omitzero"`  // no record follows
	Records int64 `json:"records,omitzero"` // record numbers covered, as far as known
}

// Faults of a call.
var (
	ErrFull     = errors.New("journal: every slot is taken")
	ErrExists   = errors.New("journal: the attempt has an entry already")
	ErrNotFound = errors.New("journal: the attempt has no entry")
	ErrTooLarge = errors.New("journal: the entry doesn't fit a slot")
	ErrInUse    = errors.New("journal: another agent uses this state directory")
	ErrClosed   = errors.New("journal: closed")
)

// Journal is an open reserved store. Its methods may be called concurrently.
type Journal struct{}

// Open opens the journal at path, or makes it with room for slots entries, all of it allocated.
// A file with more slots keeps them; one with fewer grows if the disk lets it.
func Open(_ string, _ int) (*Journal, error) { panic("not written yet") }

// Begin writes a new entry. It is on disk when Begin returns, as with every method that changes something.
func (j *Journal) Begin(_ Entry) error { panic("not written yet") }

// SetProc notes the processes of an attempt, just before its command runs.
func (j *Journal) SetProc(_ string, _ int64, _ Proc, _ time.Time) error { panic("not written yet") }

// SetLog notes the state of an attempt's log.
func (j *Journal) SetLog(_ string, _ int64, _ LogState) error { panic("not written yet") }

// SetCompletion notes how an attempt ended. A later one replaces an earlier one.
func (j *Journal) SetCompletion(_ string, _ int64, _ protocol.Completion) error {
	panic("not written yet")
}

// Remove forgets an attempt that the server has settled. Removing what isn't there is harmless.
func (j *Journal) Remove(_ string, _ int64) error { panic("not written yet") }

// Entries are all entries, oldest acceptance first.
func (j *Journal) Entries() []Entry { panic("not written yet") }

// Free is the number of empty slots.
func (j *Journal) Free() int { panic("not written yet") }

// Damage is what Open found damaged and set aside.
type Damage struct {
	Slot int    // -1: the file's header
	What string // for people
	Copy string // where the damaged bytes are kept; empty if they could not be copied
}

// Damage tells what Open found damaged. What could be read was kept.
func (j *Journal) Damage() []Damage { panic("not written yet") }

// Close ends the use of the file.
func (j *Journal) Close() error { panic("not written yet") }
