package spool

import (
	"errors"
	"fmt"
	"time"
)

// Errors of Append. ErrFull passes (see Changed), the others don't.
var (
	// ErrFull: the cap, the free space left to others, or the disk itself doesn't allow another epoch.
	ErrFull = errors.New("spool: full")
	// ErrClosed: Run has ended.
	ErrClosed = errors.New("spool: closed")
	// ErrInvalid: the batch can't be stored as it is; repeating it is pointless.
	ErrInvalid = errors.New("spool: invalid batch")
	// ErrUnknown: nothing is held of that attempt.
	ErrUnknown = errors.New("spool: no such attempt")
)

// Reasons of holes. They end up as the reason of the gap record that stands for what is lost.
const (
	ReasonCorrupt   = "damaged"   // it is there, and isn't what was written
	ReasonMissing   = "missing"   // it was there once, its neighbours say
	ReasonSpoolFull = "spoolFull" // DropOldest gave it up
	ReasonRemoved   = "removed"   // an operator removed it
)

const (
	// maxAttemptID: "<job>/<n>" with a job id of at most 64 characters fits twice.
	maxAttemptID = 160
	// maxMeta keeps what every epoch repeats per attempt small.
	maxMeta = 4 << 10
)

// Batch is a run of records of one attempt that was sealed together: the numbers First to
// First+Count-1. What Data holds is the caller's business, and so is Encoding.
type Batch struct {
	Attempt  string // opaque, 1 to 160 bytes
	First    int64  // ≥ 0
	Count    int64  // ≥ 1
	Encoding uint8
	Decoded  int64     // size of the data before it was encoded, for listing
	Stored   time.Time // set by the spool, in µs
	Data     []byte
}

// Next is the number that follows the batch.
func (b Batch) Next() int64 { return b.First + b.Count }

// State says what becomes of an attempt's batches.
type State uint8

// Waiting and Orphan are set by the spool's user; Shipped and Dead only turn up in listings.
const (
	Waiting State = iota // to be shipped
	Orphan               // nobody takes them: kept for the operator
	Shipped              // acknowledged, kept to be read
	Dead                 // dead-lettered
)

func (s State) String() string {
	switch s {
	case Waiting:
		return "waiting"
	case Orphan:
		return "orphan"
	case Shipped:
		return "shipped"
	case Dead:
		return "dead"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// AttemptInfo is what the spool knows of one attempt.
type AttemptInfo struct {
	Attempt string
	Meta    []byte
	First   int64 // lowest number that isn't acknowledged, as far as is known
	Next    int64 // the end
	Batches int64 // held and not acknowledged as a whole (an epoch's count is one figure)
	Bytes   int64 // of those batches, as stored
	Decoded int64 // of those batches, before encoding
	Oldest  time.Time
	State   State
}

// HoleError says that the numbers First to Next-1 are lost. It isn't a failure of the call: the
// range is exact, and what follows it can be read.
type HoleError struct {
	Attempt     string
	First, Next int64
	Reason      string
}

func (e *HoleError) Error() string {
	return fmt.Sprintf("spool: %s: records %d to %d are lost (%s)", e.Attempt, e.First, e.Next-1, e.Reason)
}

// DamageError locates something that can't be read.
type DamageError struct {
	Epoch  uint64
	File   string
	Offset int64
	Detail string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("spool: epoch %d: %s at %d: %s", e.Epoch, e.File, e.Offset, e.Detail)
}

// DeadLetter is a batch that was taken out of the way for good.
type DeadLetter struct {
	ID     string // the file's name
	Reason string
	Time   time.Time
	Meta   []byte
	Batch  Batch
}

// Quarantined is something that couldn't be read and was put aside.
type Quarantined struct {
	Name  string
	Bytes int64
	Time  time.Time
}

// Histogram counts group commits by how long they took, fsync included.
type Histogram struct {
	Bounds []float64 // upper bounds, seconds; the last bucket has none
	Counts []uint64  // len(Bounds)+1, not cumulative
	Sum    float64
}

// Stats is a snapshot.
type Stats struct {
	Batches, Bytes int64 // held and not acknowledged
	Epochs         int
	DiskUsed       int64 // allocated blocks, all files
	DiskFree       int64 // what the file system would give us
	DiskTotal      int64
	EpochSize      int64
	Full           bool
	Appended       uint64 // batches made durable by this process
	AppendedBytes  uint64
	Corrupt        uint64 // batches found damaged by this process
	Quarantined    int64  // bytes
	DeadLetters    int64
	Commits        Histogram
}
