package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"agentd/controlplane-mock/store"
)

// memory counts the bytes that bodies hold.
type memory struct {
	max  int64
	used atomic.Int64
}

func (m *memory) take(n int64) bool {
	if m.used.Add(n) > m.max {
		m.used.Add(-n)
		return false
	}
	return true
}

func (m *memory) give(n int64) { m.used.Add(-n) }

// decodeLimits bound what a body may become.
type decodeLimits struct {
	decoded int64
	record  int
	codecs  *codecs
}

// windowSize is how much of a body is decoded at once: some snappy and zstd blocks, and well within a core's own cache,
// so that the check reads what the decoder has just written.
const windowSize = 128 << 10

var windows = sync.Pool{New: func() any { b := make([]byte, windowSize); return &b }}

// walk decodes a body and calls f for each record, in order; line and r are valid during the call only. It never holds
// more than a window or one record of the decoded body, whatever the body claims to become.
// What is wrong with the body comes back as a *problem; what f returns, as it is.
func walk(encoding string, body []byte, lim decodeLimits, f func(line []byte, r *record) error) (decoded int64, err error) {
	src, done, err := lim.codecs.decoder(encoding, body)
	defer done()
	if err != nil {
		return 0, corrupt("the body is not %s: %v", encoding, err)
	}
	pooled := windows.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer windows.Put(pooled)
	win, fill := *pooled, 0
	var rec record
	index := 0
	for {
		n, rerr := src.Read(win[fill:])
		fill += n
		if decoded += int64(n); decoded > lim.decoded {
			return decoded, tooLarge("the body decodes to more than %d bytes", lim.decoded)
		}
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return decoded, corrupt("the body is not %s: %v", encoding, rerr)
		}
		end := rerr != nil
		used := 0
		for used < fill {
			p := win[used:fill]
			size := scanRecord(p, &rec)
			line := p[:max(size-1, 0)]
			if size == 0 {
				nl := bytes.IndexByte(p, '\n')
				if nl < 0 && !end {
					break
				}
				line, size = p, len(p)
				if nl >= 0 {
					line, size = p[:nl], nl+1
				}
				if len(line) > lim.record {
					return decoded, recordTooLarge(index, lim)
				}
				if err := parseRecord(line, &rec); err != nil {
					return decoded, atRecord(index, err)
				}
			}
			if len(line) > lim.record {
				return decoded, recordTooLarge(index, lim)
			}
			if err := f(line, &rec); err != nil {
				return decoded, err
			}
			used += size
			index++
		}
		if end {
			return decoded, nil
		}
		fill = copy(win, win[used:fill])
		if fill > lim.record {
			return decoded, recordTooLarge(index, lim)
		}
		if fill > len(win)/2 {
			// A long record. Not into the pool: most are short.
			win = append(make([]byte, 0, 2*len(win)), win[:fill]...)
			win = win[:cap(win)]
		}
	}
}

func recordTooLarge(index int, lim decodeLimits) *problem {
	return tooLarge("record %d of the body is larger than %d bytes", index, lim.record)
}

// atRecord says which record of a body is meant, so that a client may look for it.
func atRecord(index int, err error) error {
	if p, ok := errors.AsType[*problem](err); ok {
		q := *p
		q.Detail = fmt.Sprintf("record %d of the body: %s", index, p.Detail)
		return &q
	}
	return err
}

// checkBody decodes all of a body and answers its decoded size, or what is wrong with it.
func checkBody(encoding string, body []byte, count int64, lim decodeLimits) (decoded int64, err error) {
	var covered int64
	decoded, err = walk(encoding, body, lim, func(_ []byte, r *record) error {
		// Each is at most 2^53, and above count the sum is of no interest: it can't overflow.
		if covered += r.numbers(); covered > count {
			return corrupt("count: the body covers more than %d record numbers", count)
		}
		return nil
	})
	if err == nil && covered != count {
		err = corrupt("count: is %d, and the body covers %d record numbers", count, covered)
	}
	return decoded, err
}

// trimBatch makes the part of a checked batch from next on. Bodies that overlap are rare (an answer was lost and the agent
// has batched anew), so they may be encoded once more.
func trimBatch(b store.LogBatch, next int64, lim decodeLimits) (store.LogBatch, error) {
	plain := make([]byte, 0, min(b.Decoded, lim.decoded))
	n := b.First
	_, err := walk(b.Encoding, b.Body, lim, func(line []byte, r *record) error {
		start := n
		n += r.numbers()
		switch {
		case n <= next:
		case start < next:
			r.gap = n - next
			plain = append(r.appendJSON(plain, -1), '\n')
		default:
			plain = append(append(plain, line...), '\n')
		}
		return nil
	})
	if err != nil {
		return store.LogBatch{}, fmt.Errorf("controlplane: trim a checked batch: %w", err)
	}
	return store.LogBatch{
		First: next, Count: b.First + b.Count - next, Final: b.Final,
		Encoding: encZstd, Body: lim.codecs.encodeZstd(plain), Decoded: int64(len(plain)), ReceivedAt: b.ReceivedAt,
	}, nil
}
