package spool

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// groupWait bounds how long a transaction waits for callers that are about to join it.
	groupWait = 20 * time.Millisecond
	// groupEnough: with so much, waiting for more gains nothing. Single 64 KiB commits ran at
	// 16 MB/s where eight together ran at 115.
	groupEnough = 512 << 10
	// groupMax bounds a transaction; a single larger batch is one of its own. Four batches of the
	// usual 256 KiB, with their headers, are to go together.
	groupMax = 1<<20 + 64<<10
)

// request is one Append on its way to the writer. Nothing in it is still the caller's.
type request struct {
	items  []item
	answer chan error // has room for the one answer
}

// item is one batch, ready to be stored.
type item struct {
	entry
	attempt string
	meta    []byte // the attempt's
	ref     ref
}

// Append stores batches, per attempt in the order of the calls, and returns nil when they are
// durable. It doesn't keep the data. ErrFull: nothing more fits for now; some of the batches may
// have been stored, and storing them again is harmless. When ctx ends first, they may be stored or not.
func (s *Spool) Append(ctx context.Context, batches ...Batch) error {
	if len(batches) == 0 {
		return nil
	}
	r := &request{answer: make(chan error, 1)}
	now := time.Now()
	for _, b := range batches {
		if err := validBatch(b); err != nil {
			return err
		}
		if most := int(layoutFor(s.epochSize).vlog / 2); len(b.Data) > most {
			return fmt.Errorf("%w: %s: %d bytes of data, an epoch takes %d", ErrInvalid, b.Attempt, len(b.Data), most)
		}
		k := appendKey(nil, key{kind: kindBatch, attempt: b.Attempt, first: b.First, next: b.Next()})
		h := header{encoding: b.Encoding, count: b.Count, decoded: b.Decoded, stored: now.UnixMicro()}
		v := appendValue(s.values.take(valueHeader+len(b.Data)), k, h, b.Data)
		r.items = append(r.items, item{
			entry: entry{key: k, value: v}, attempt: b.Attempt,
			ref: ref{first: b.First, next: b.Next(), valueLen: int64(len(v)), decoded: b.Decoded, stored: h.stored},
		})
	}
	if err := s.addMeta(r.items); err != nil {
		return err
	}
	s.arriving.Add(1)
	select {
	case s.requests <- r: // the writer counts it: it must not wait for a caller that it has just taken
	case <-s.done:
		s.arriving.Add(-1)
		return ErrClosed
	case <-ctx.Done():
		s.arriving.Add(-1)
		return ctx.Err()
	}
	select {
	case err := <-r.answer:
		for _, it := range r.items {
			s.values.give(it.value)
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// addMeta has each item carry its attempt's meta: what the spool knows of an attempt may go before the writer comes to it.
func (s *Spool) addMeta(items []item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range items {
		a := s.attempts[items[i].attempt]
		if a == nil || a.meta == nil {
			return fmt.Errorf("%w: %s: SetMeta comes first", ErrInvalid, items[i].attempt)
		}
		items[i].meta = a.meta
	}
	return nil
}

// buffers are kept from one Append to the next: fresh memory for each value cost half as much as all that badger does with it.
type buffers struct{ pool sync.Pool }

func (b *buffers) take(size int) []byte {
	if p, ok := b.pool.Get().(*[]byte); ok && cap(*p) >= size {
		return (*p)[:0]
	}
	return make([]byte, 0, size)
}

func (b *buffers) give(p []byte) { b.pool.Put(&p) }
