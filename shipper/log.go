package shipper

import (
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentd/agent/protocol"
	"agentd/shipper/internal/queue"
)

// ErrStopped means that the shipper has ended: what a pipe still holds can't be taken any more.
var ErrStopped = errors.New("shipper: stopped")

const (
	// sealBytes is how much output makes a batch of its own accord: enough for compression and for
	// few requests, and it stays within a core's second-level cache between reading and compressing.
	sealBytes = 256 << 10
	// sealAge is how long a line waits for company: a person who watches doesn't notice a quarter of a second.
	sealAge = 250 * time.Millisecond
	// lineAge is how much longer a line's beginning waits for its end before it is shipped as a
	// part: a prompt or a row of dots is seen within a second, while lines that are printed in two
	// writes stay whole.
	lineAge = 750 * time.Millisecond
)

// Log is the log of one attempt while the job runs.
type Log struct {
	s   *Shipper
	q   *queue.Attempt
	ref protocol.AttemptRef

	fresh  atomic.Int64 // when the oldest byte was read that no seal has looked at, in unix nanoseconds; 0 = none
	unseen atomic.Int64 // how many bytes that are
	ended  [queue.Streams]atomic.Bool
	closed atomic.Bool // nothing more will be read
	// complete: everything that was read is sealed, and so the number of records is final.
	complete atomic.Bool
	flying   atomic.Bool // the lane's, to be seen without its mutex

	sealMu sync.Mutex // one seal at a time; never taken while holding Shipper.mu
	// Of lines without an end: where they begin, and since when they have been waited for. Guarded by sealMu.
	partAt    [queue.Streams]int64
	partSince [queue.Streams]time.Time
	partDue   atomic.Int64 // when the first of them is to be shipped as it is, in unix nanoseconds; 0 = none
}

// Stream reads a pipe into the log until EOF; s is protocol.Stdout or protocol.Stderr. Each stream
// may be read by one goroutine at a time.
func (l *Log) Stream(s protocol.Stream) io.ReaderFrom {
	if s == protocol.Stderr {
		return &reader{l, streamErr}
	}
	return &reader{l, streamOut}
}

// Remark adds a record of the agent's own. It never blocks: if memory is full to the last page, the remark is lost, and counted.
func (l *Log) Remark(text string) {
	l.sealMu.Lock() // one writer at a time
	defer l.sealMu.Unlock()
	if l.closed.Load() {
		return
	}
	p := []byte(strings.TrimSuffix(text, "\n") + "\n")
	raw := l.q.Raw(streamRemark)
	for len(p) > 0 {
		room, err := raw.Space(true)
		if err != nil {
			l.s.counters.remarksLost.Add(1)
			return
		}
		n := min(room, len(p))
		raw.Put(p[:n], time.Now().UnixMicro())
		p = p[n:]
		l.noteFresh(n)
	}
}

// Close ends the log and returns how many numbers it covers, for the completion. The rest ships in
// the background. Call it after both streams have been read to their end.
func (l *Log) Close() int64 {
	for i := range l.ended {
		l.ended[i].Store(true)
	}
	l.sealMu.Lock()
	l.closed.Store(true)
	l.sealMu.Unlock()
	if err := l.seal(); err != nil {
		return l.countAll() // memory is full: the rest is sealed as it empties, with just these numbers
	}
	return l.q.Next()
}

// streamEnded notes that a stream's pipe is at its end, so that a last line without newline needn't wait for one.
func (l *Log) streamEnded(which int) {
	l.ended[which].Store(true)
	l.noteFresh(0)
}

// wasRead follows every read. When enough has come together the reader seals it itself: the bytes
// are still in its core's cache, and a job that prints faster than we can compress waits for it.
func (l *Log) wasRead(n int) {
	l.noteFresh(n)
	if l.unseen.Load() >= l.s.sealBytes {
		l.sealOrDrop() //nolint:errcheck // the only failure is a full memory, which the next read finds, too
	}
}

func (l *Log) noteFresh(n int) {
	l.unseen.Add(int64(n))
	if l.fresh.Load() == 0 && l.fresh.CompareAndSwap(0, time.Now().UnixNano()) {
		l.s.sealLater()
	}
}

// makeRoom is called when there is no page to read into. It seals what can be sealed, drops what
// is to be dropped, or waits.
func (l *Log) makeRoom(which int) error {
	if l.unseen.Load() > 0 {
		l.sealOrDrop() //nolint:errcheck // if memory is full, we wait below
		if n, err := l.q.Raw(which).Space(false); err == nil && n > 0 {
			return nil
		}
	}
	dropping := l.s.mustDrop()
	if l.s.dropForRoom(l) {
		// What was read is gone, but others, or our own batches, may hold our whole share: then the
		// reserve lends a page to read the next output into, and to drop it.
		if _, err := l.q.Raw(which).Space(dropping); err == nil || !dropping {
			return nil // without room yet, the next oldest batch goes
		}
	}
	l.s.kickSpill()
	// Our oldest batch may be under way just now, and can be dropped when its request has failed.
	inFlight := l.s.cfg.Spool == nil && l.s.cfg.WhenFull == WhenFullDropOldest && l.flying.Load()
	stop := func() bool { return !dropping && l.s.mustDrop() || inFlight && !l.flying.Load() }
	if !l.q.WaitRoom(stop) && !stop() {
		return ErrStopped
	}
	return nil
}

// due is when the log should be sealed next; 0 = nothing waits.
func (l *Log) due() int64 {
	at := l.partDue.Load()
	if fresh := l.fresh.Load(); fresh > 0 && (at == 0 || fresh+int64(sealAge) < at) {
		at = fresh + int64(sealAge)
	}
	return at
}
