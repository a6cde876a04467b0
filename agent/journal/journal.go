package journal

import (
	"errors"
	"fmt"
	"slices"
	"sync"
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
	StartedAt  time.Time `json:"startedAt,omitzero"` // zero: the command never ran, for certain
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

// Faults of a call. An error of Begin means that the job must not be started.
var (
	ErrFull     = errors.New("journal: every slot is taken")
	ErrExists   = errors.New("journal: the attempt has an entry already")
	ErrNotFound = errors.New("journal: the attempt has no entry")
	ErrTooLarge = errors.New("journal: the entry doesn't fit a slot")
	ErrClosed   = errors.New("journal: closed")
)

// ErrInUse is a fault of Open.
var ErrInUse = errors.New("journal: another agent uses this state directory")

// Damage is what Open found damaged and set aside.
type Damage struct {
	Slot int    // -1: the file as a whole
	What string // for people
	Copy string // where the damaged bytes are kept; empty if there were none to keep or no room
}

// Journal is an open reserved store. Its methods may be called concurrently.
// Each that changes something returns when the change is on disk.
type Journal struct {
	path   string
	reopen func() (device, error)
	damage []Damage // written by Open only

	mu    sync.Mutex // guards what follows, and makes updates one at a time
	dev   device     // nil: closed, or to be opened again
	slots []slot
	seq   uint64 // highest in the file
	done  bool   // by Close
}

// slot is what one slot holds: the half that counts, and its value.
type slot struct {
	half  int
	seq   uint64 // 0: never written
	entry *Entry // nil: empty
	aside bool   // damaged, and no room to copy it: not to be overwritten
}

// Begin writes a new entry.
func (j *Journal) Begin(e Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.find(e.JobID, e.Attempt) >= 0 {
		return fmt.Errorf("%w: %s/%d", ErrExists, e.JobID, e.Attempt)
	}
	i := slices.IndexFunc(j.slots, func(s slot) bool { return s.entry == nil && !s.aside })
	if i < 0 {
		return fmt.Errorf("%w (%d)", ErrFull, len(j.slots))
	}
	return j.put(i, &e)
}

// SetProc notes the processes of an attempt, just before its command runs.
func (j *Journal) SetProc(jobID string, attempt int64, p Proc, startedAt time.Time) error {
	return j.update(jobID, attempt, func(e *Entry) { e.Proc, e.StartedAt = p, startedAt })
}

// SetLog notes the state of an attempt's log.
func (j *Journal) SetLog(jobID string, attempt int64, l LogState) error {
	return j.update(jobID, attempt, func(e *Entry) { e.Log = l })
}

// SetCompletion notes how an attempt ended. A later one replaces an earlier one.
func (j *Journal) SetCompletion(jobID string, attempt int64, c protocol.Completion) error {
	c.Result = slices.Clone(c.Result)
	return j.update(jobID, attempt, func(e *Entry) { e.Completion = &c })
}

// Remove forgets an attempt that the server has settled. Removing what isn't there is harmless.
func (j *Journal) Remove(jobID string, attempt int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := j.find(jobID, attempt)
	if i < 0 {
		return nil
	}
	return j.put(i, nil)
}

// Entries are all entries, oldest acceptance first. They are the caller's.
func (j *Journal) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []Entry
	for _, s := range j.slots {
		if s.entry == nil {
			continue
		}
		e := *s.entry
		if e.Completion != nil {
			c := *e.Completion
			c.Result = slices.Clone(c.Result)
			e.Completion = &c
		}
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b Entry) int { return a.AcceptedAt.Compare(b.AcceptedAt) })
	return all
}

// Free is the number of empty slots.
func (j *Journal) Free() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, s := range j.slots {
		if s.entry == nil && !s.aside {
			n++
		}
	}
	return n
}

// Damage tells what Open found damaged. What could be read was kept.
func (j *Journal) Damage() []Damage { return slices.Clone(j.damage) }

// Close ends the use of the file.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = true
	if j.dev == nil {
		return nil
	}
	err := j.dev.Close()
	j.dev = nil
	return err
}

func (j *Journal) find(jobID string, attempt int64) int {
	return slices.IndexFunc(j.slots, func(s slot) bool {
		return s.entry != nil && s.entry.JobID == jobID && s.entry.Attempt == attempt
	})
}

func (j *Journal) update(jobID string, attempt int64, change func(*Entry)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := j.find(jobID, attempt)
	if i < 0 {
		return fmt.Errorf("%w: %s/%d", ErrNotFound, jobID, attempt)
	}
	e := *j.slots[i].entry
	change(&e)
	return j.put(i, &e)
}

// put makes entry the slot's value: written beside the one before, synced, and only then believed.
func (j *Journal) put(i int, entry *Entry) error {
	if j.done {
		return ErrClosed
	}
	err := j.putOnce(i, entry)
	if err == nil || errors.Is(err, ErrTooLarge) {
		return err
	}
	// The descriptor has told its error and can't be asked again; what the disk has of the slot is to be found out.
	if err := j.again(i); err != nil {
		return fmt.Errorf("journal: %s: slot %d: %w", j.path, i, err)
	}
	if err := j.putOnce(i, entry); err != nil {
		return fmt.Errorf("journal: %s: slot %d: %w", j.path, i, err)
	}
	return nil
}

func (j *Journal) putOnce(i int, entry *Entry) error {
	s := &j.slots[i]
	half := 1 - s.half
	if s.seq == 0 {
		half = 0
	}
	data, err := encodeHalf(entry, j.seq+1, i, half)
	if err != nil {
		return err
	}
	if j.dev == nil {
		return errNoDevice
	}
	if err := j.write(data, halfOffset(i, half)); err != nil {
		return err
	}
	j.seq++
	s.half, s.seq, s.entry = half, j.seq, entry
	return nil
}

// errNoDevice: opening again has failed before; the next update tries once more.
var errNoDevice = errors.New("not open")

func (j *Journal) write(data []byte, at int64) error {
	if _, err := j.dev.WriteAt(data, at); err != nil {
		return err
	}
	return j.dev.Sync()
}

// again opens the file anew. The half that counts, and the value in memory, stay: they are what the disk is known to have, and what
// the callers were told. The other half reads back whole, perhaps, and needn't be on the disk: it is the one to be written again.
func (j *Journal) again(i int) error {
	if j.dev != nil {
		_ = j.dev.Close() // its error is why we are here
		j.dev = nil
	}
	dev, err := j.reopen()
	if err != nil {
		return err
	}
	j.dev = dev
	for half := range 2 {
		if seq, _, err := decodeHalf(newHalfReader(dev, i, half), i, half); err == nil {
			j.seq = max(j.seq, seq) // a write that failed may have arrived: its number is taken
		}
	}
	return nil
}
