package spool

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// running is a spool whose Run is under way.
type running struct {
	*Spool
	t    *testing.T
	stop func()
	logs *observer.ObservedLogs
}

func start(t *testing.T, cfg Config) *running { return startWith(t, cfg, nil) }

func startWith(t *testing.T, cfg Config, wrap func(kv) kv) *running {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	cfg.Logger = zap.New(core)
	if cfg.MinFree == 0 {
		cfg.MinFree = -1
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.wrapKV = wrap
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	stop := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return &running{Spool: s, t: t, stop: stop, logs: logs}
}

// payload is what the batch that starts at first must hold.
func payload(attempt string, first int64, size int) []byte {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, attempt, " ", first)
	r := rand.NewPCG(h.Sum64(), 0)
	b := make([]byte, 0, size+8)
	for len(b) < size {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	b = b[:size]
	return b
}

func batch(attempt string, first, count int64, size int) Batch {
	return Batch{Attempt: attempt, First: first, Count: count, Encoding: 3, Decoded: int64(size) * 2, Data: payload(attempt, first, size)}
}

func (r *running) fill(attempt string, from, batches, count int64, size int) int64 {
	r.t.Helper()
	r.SetMeta(attempt, []byte("meta of "+attempt))
	for i := range batches {
		if err := r.Append(r.t.Context(), batch(attempt, from+i*count, count, size)); err != nil {
			r.t.Fatal(err)
		}
	}
	return from + batches*count
}

// walk reads an attempt from first on. It fails on a batch that isn't what was written, and returns
// what is there and what is missing.
func walk(read func(string, int64) (Batch, error), attempt string, from int64, size int) (got, lost []hole, err error) {
	for at := from; ; {
		b, err := read(attempt, at)
		if errors.Is(err, io.EOF) {
			return got, lost, nil
		}
		if h, ok := errors.AsType[*HoleError](err); ok {
			if h.First != at || h.Next <= at {
				return got, lost, fmt.Errorf("hole where %d was asked for: %w", at, h)
			}
			lost = append(lost, hole{h.First, h.Next, h.Reason})
			at = h.Next
			continue
		}
		if err != nil {
			return got, lost, err
		}
		if b.First > at || b.Next() <= at || b.Attempt != attempt {
			return got, lost, fmt.Errorf("asked for %d, got %s %d to %d", at, b.Attempt, b.First, b.Next())
		}
		if !bytes.Equal(b.Data, payload(attempt, b.First, len(b.Data))) || size >= 0 && len(b.Data) != size {
			return got, lost, fmt.Errorf("batch %d has other data than was written", b.First)
		}
		if n := len(got); n > 0 && got[n-1].Next == at {
			got[n-1].Next = b.Next()
		} else {
			got = append(got, hole{First: at, Next: b.Next()})
		}
		at = b.Next()
	}
}

func (r *running) expect(attempt string, from, next int64, size int) {
	r.t.Helper()
	got, lost, err := walk(r.Read, attempt, from, size)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(lost) != 0 || len(got) != 1 || got[0] != (hole{First: from, Next: next}) {
		r.t.Fatalf("%s: have %v, lost %v; want %d to %d", attempt, got, lost, from, next)
	}
}
