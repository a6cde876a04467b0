package shipper

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"agentd/spool"
)

// memSpool is a spool in memory, by the words of the Spool interface.
type memSpool struct {
	mu      sync.Mutex
	logs    map[string]*memLog
	order   []string
	size    int64
	cap     int64 // 0 = none
	err     error // what Append answers
	dead    []spool.Batch
	changed chan struct{}
	appends int
}

type memLog struct {
	batches []spool.Batch
	holes   []spool.HoleError
	meta    []byte
	acked   int64
	next    int64
	state   spool.State
}

func newMemSpool() *memSpool {
	return &memSpool{logs: map[string]*memLog{}, changed: make(chan struct{})}
}

func (m *memSpool) log(key string) *memLog {
	l := m.logs[key]
	if l == nil {
		l = &memLog{}
		m.logs[key] = l
		m.order = append(m.order, key)
	}
	return l
}

func (m *memSpool) Append(_ context.Context, batches ...spool.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	size := int64(0)
	for _, b := range batches {
		size += int64(len(b.Data))
	}
	if m.cap > 0 && m.size+size > m.cap {
		return spool.ErrFull
	}
	for _, b := range batches {
		l := m.log(b.Attempt)
		if l.meta == nil {
			return errors.New("no meta")
		}
		if b.First < l.next {
			return errors.New("out of order")
		}
		b.Data = slices.Clone(b.Data)
		b.Stored = time.Now()
		l.batches = append(l.batches, b)
		l.next = b.Next()
	}
	m.size += size
	m.appends++
	return nil
}

func (m *memSpool) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.appends
}

func (m *memSpool) SetMeta(key string, meta []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log(key).meta = meta
}

func (m *memSpool) SetState(key string, st spool.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log(key).state = st
}

func (m *memSpool) Ack(key string, next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.log(key)
	l.acked = max(l.acked, next)
	freed := false
	l.batches = slices.DeleteFunc(l.batches, func(b spool.Batch) bool {
		if b.Next() <= next {
			m.size -= int64(len(b.Data))
			freed = true
			return true
		}
		return false
	})
	if freed {
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

func (m *memSpool) Attempts() (out []spool.AttemptInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range m.order {
		l := m.logs[key]
		if l.acked >= l.next {
			continue
		}
		first := l.acked
		for _, h := range l.holes {
			if h.First <= first && first < h.Next {
				first = h.Next
			}
		}
		out = append(out, spool.AttemptInfo{Attempt: key, Meta: l.meta, First: first, Next: l.next, State: l.state})
	}
	return out
}

func (m *memSpool) Read(key string, from int64) (spool.Batch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.log(key)
	for _, h := range l.holes {
		if h.First <= from && from < h.Next {
			h.First = from
			return spool.Batch{}, &h
		}
	}
	for _, b := range l.batches {
		if b.Next() > from {
			if b.First > from {
				return spool.Batch{}, &spool.HoleError{Attempt: key, First: from, Next: b.First, Reason: spool.ReasonMissing}
			}
			return b, nil
		}
	}
	return spool.Batch{}, io.EOF
}

// DropOldest gives up the first attempt's first half.
func (m *memSpool) DropOldest() (freed int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range m.order {
		l := m.logs[key]
		n := (len(l.batches) + 1) / 2
		if n == 0 {
			continue
		}
		for _, b := range l.batches[:n] {
			freed += int64(len(b.Data))
			l.holes = append(l.holes, spool.HoleError{Attempt: key, First: b.First, Next: b.Next(), Reason: spool.ReasonSpoolFull})
		}
		l.batches = l.batches[n:]
		m.size -= freed
		return freed, nil
	}
	return 0, nil
}

func (m *memSpool) DeadLetter(b spool.Batch, _ string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b.Data = slices.Clone(b.Data)
	m.dead = append(m.dead, b)
	return nil
}

func (m *memSpool) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}
