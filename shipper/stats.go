package shipper

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"agentd/agent/protocol"
)

var errNoProgress = errors.New("shipper: the server acknowledged nothing of what it accepted")

func errNext(err error) int64 {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e.Next
	}
	return 0
}

// counters count records and requests since the process started.
type counters struct {
	accepted, acceptedBytes atomic.Int64 // numbers given out, and what they take as NDJSON
	acked, shippedBytes     atomic.Int64
	dead                    atomic.Int64
	retries, corrupt        atomic.Int64
	remarksLost             atomic.Int64

	mu       sync.Mutex
	gaps     map[string]int64 // records by reason; guarded by mu
	requests map[[2]string]int64
}

func (c *counters) gap(reason string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gaps == nil {
		c.gaps = map[string]int64{}
	}
	c.gaps[reason] += n
}

// request counts a request by how it ended: the status, or "error" when there was no answer.
func (c *counters) request(call string, err error) {
	code := "200"
	if err != nil {
		code = "error"
		if errors.Is(err, context.Canceled) {
			code = "cancelled"
		}
		if e, ok := errors.AsType[*protocol.Error](err); ok && e.Status != 0 {
			code = strconv.Itoa(e.Status)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests == nil {
		c.requests = map[[2]string]int64{}
	}
	c.requests[[2]string{call, code}]++
}

// Recovered is an attempt whose log was found at start.
type Recovered struct {
	Ref        protocol.AttemptRef
	LogRecords int64 // what a completion of it must say
	InMemory   bool  // the queue file had it: nothing that was read is missing. Else see MemoryLost
}

// AttemptStats is where an attempt's records are.
type AttemptStats struct {
	Job             string
	Attempt         int64
	Closed          bool
	State           string        // waiting, retrying or orphan
	Printed         int64         // bytes read from its pipes and held in memory's positions
	Records         int64         // numbers given out
	Buffered        int64         // records in memory
	Durable         int64         // records in the spool
	Shipped         int64         // the server's next
	Lost            int64         // of the records not shipped: those that stand for nothing
	OldestUnshipped time.Duration // for heartbeats; 0 = everything is shipped
}

// Stats is the sum over all attempts. Records of the running process satisfy
// Accepted = Acked + Memory + Spool + Dead + Gaps.
type Stats struct {
	MemorySize, MemoryUsed                     int64 // bytes of the queue file, and of it in use
	Accepted, Acked, Memory, Spool, Dead, Gaps int64 // records
	AcceptedBytes                              int64
	OldestUnshipped                            time.Duration
	Attempts                                   []AttemptStats // in the order they were opened
}

// Stats says where all records are.
func (s *Shipper) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		MemorySize: s.queue.Size(), MemoryUsed: s.queue.Used(),
		Accepted: s.counters.accepted.Load(), AcceptedBytes: s.counters.acceptedBytes.Load(),
		Acked: s.counters.acked.Load(), Dead: s.counters.dead.Load(),
	}
	for _, l := range s.order {
		a := s.statsOf(l)
		st.Memory += a.Buffered
		st.Spool += a.Durable
		st.OldestUnshipped = max(st.OldestUnshipped, a.OldestUnshipped)
		st.Attempts = append(st.Attempts, a)
	}
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	for _, n := range s.counters.gaps {
		st.Gaps += n
	}
	return st
}

// AttemptStats says where an attempt's records are; false = nothing of it is held any more.
func (s *Shipper) AttemptStats(jobID string, attempt int64) (AttemptStats, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[keyOf(protocol.AttemptRef{JobID: jobID, Attempt: attempt})]
	if l == nil {
		return AttemptStats{}, false
	}
	return s.statsOf(l), true
}

func (s *Shipper) statsOf(l *lane) AttemptStats {
	a := AttemptStats{Job: l.ref.JobID, Attempt: l.ref.Attempt, Closed: l.complete(), State: "waiting", Shipped: l.next, Records: max(s.end(l), l.next)}
	switch {
	case l.orphan:
		a.State = "orphan"
	case l.fails > 0:
		a.State = "retrying"
	}
	inSpool := max(l.next, l.spoolNext)
	a.Durable = inSpool - l.next - l.lost(l.next, inSpool)
	a.Buffered = a.Records - inSpool - l.lost(inSpool, a.Records)
	a.Lost = l.lost(l.next, a.Records)
	oldest := l.spooledSince
	if l.q != nil {
		for i := range streamNames {
			a.Printed += l.q.Raw(i).Total()
		}
		if l.next >= l.spoolNext {
			oldest = time.Time{}
			if b, _, ok := l.q.Find(l.next); ok && b.Oldest > 0 {
				oldest = time.UnixMicro(b.Oldest)
			}
		}
	}
	if a.Shipped < a.Records && !oldest.IsZero() {
		a.OldestUnshipped = max(time.Since(oldest), 0)
	}
	return a
}
