package storetest

import (
	"bytes"
	"errors"
	"fmt"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// batch covers [first, end) with one line for each number, and trims as the server's do.
func batch(first, end int64) store.LogBatch {
	var body []byte
	for n := first; n < end; n++ {
		body = fmt.Appendf(body, "%d\n", n)
	}
	return store.LogBatch{
		First: first, Count: end - first, Encoding: "identity", Body: body, Decoded: int64(len(body)),
		Trim: func(next int64) (store.LogBatch, error) { return batch(next, end), nil },
	}
}

func (e *env) appendLog(r store.Ref, b store.LogBatch, want int64) {
	e.Helper()
	next, err := e.AppendLog(e.ctx, r, b)
	e.ok(err)
	equal(e, "next", next, want)
	next, err = e.LogNext(e.ctx, r)
	e.ok(err)
	equal(e, "next again", next, want)
}

// wantLog reads the log from a number on and checks that it is dense up to end.
func (e *env) wantLog(r store.Ref, from, end int64, maxBytes int) {
	e.Helper()
	for at := from; at < end; {
		batches, err := e.ReadLog(e.ctx, r.JobID, r.Attempt, at, maxBytes)
		e.ok(err)
		if len(batches) == 0 {
			e.Fatalf("nothing at %d, want records up to %d", at, end)
		}
		for i, b := range batches {
			if b.First > at || b.First < at && i > 0 || b.First+b.Count <= at {
				e.Fatalf("a batch covers %d+%d, want it to go on from %d", b.First, b.Count, at)
			}
			if want := batch(b.First, b.First+b.Count); !bytes.Equal(b.Body, want.Body) || b.Encoding != want.Encoding || b.Decoded != want.Decoded {
				e.Fatalf("batch %d+%d: got %s %q (%d), want %s %q (%d)", b.First, b.Count, b.Encoding, b.Body, b.Decoded, want.Encoding, want.Body, want.Decoded)
			}
			if b.ReceivedAt.IsZero() {
				e.Fatal("a stored batch has no time")
			}
			at = b.First + b.Count
		}
	}
	batches, err := e.ReadLog(e.ctx, r.JobID, r.Attempt, end, maxBytes)
	e.ok(err)
	equal(e, "batches after the end", len(batches), 0)
}

var logRules = []rule{
	{"at next a batch is appended, below it dropped, above it refused with next", func(e *env) {
		r := e.start(e.submit())
		e.appendLog(r, batch(0, 3), 3)
		e.appendLog(r, batch(3, 4), 4)
		e.appendLog(r, batch(0, 3), 4)
		e.appendLog(r, batch(1, 4), 4)
		next, err := e.AppendLog(e.ctx, r, batch(5, 6))
		gap, ok := errors.AsType[*store.GapError](err)
		if !ok || gap.Next != 4 {
			e.Fatalf("got %d, %v, want a gap at 4", next, err)
		}
		e.wantLog(r, 0, 4, 1<<20)
	}},
	{"a batch that straddles next is trimmed", func(e *env) {
		r := e.start(e.submit())
		e.appendLog(r, batch(0, 3), 3)
		e.appendLog(r, batch(1, 7), 7)
		e.appendLog(r, batch(0, 9), 9)
		e.restart()
		e.wantLog(r, 0, 9, 1<<20)
		boom := errors.New("boom")
		b := batch(2, 12)
		b.Trim = func(int64) (store.LogBatch, error) { return store.LogBatch{}, boom }
		_, err := e.AppendLog(e.ctx, r, b)
		e.wantErr(err, boom)
		e.appendLog(r, batch(9, 10), 10)
	}},
	{"a body is stored as it came", func(e *env) {
		r := e.start(e.submit())
		body := []byte("\x00\xff\xfe not text '\" \n")
		e.appendLog(r, store.LogBatch{Count: 2, Encoding: "zstd", Body: body, Decoded: 99}, 2)
		big := bytes.Repeat([]byte{0, 1, 2, 250}, 1<<20)
		e.appendLog(r, store.LogBatch{First: 2, Count: 3, Encoding: "snappy", Body: big, Decoded: 1 << 23}, 5)
		e.restart()
		batches, err := e.ReadLog(e.ctx, r.JobID, r.Attempt, 0, 1<<30)
		e.ok(err)
		equal(e, "batches", len(batches), 2)
		equal(e, "body", string(batches[0].Body), string(body))
		equal(e, "encoding", batches[0].Encoding, "zstd")
		equal(e, "decoded", batches[0].Decoded, 99)
		equal(e, "big body", bytes.Equal(batches[1].Body, big), true)
	}},
	{"a read starts at the batch that covers its number and ends at about its size", func(e *env) {
		r := e.start(e.submit())
		const end = 210 // more batches than one read looks ahead
		for n := int64(0); n < end; n += 3 {
			e.appendLog(r, batch(n, n+3), n+3)
		}
		for _, from := range []int64{0, 1, 2, 3, 98, 209} {
			e.wantLog(r, from, end, 1)
			e.wantLog(r, from, end, 200)
			e.wantLog(r, from, end, 1<<20)
		}
		batches, err := e.ReadLog(e.ctx, r.JobID, r.Attempt, 4, 1)
		e.ok(err)
		equal(e, "batches", len(batches), 1)
		equal(e, "first", batches[0].First, 3)
	}},
	{"count 0 stores nothing and answers next, whatever first is", func(e *env) {
		r := e.start(e.submit())
		e.appendLog(r, store.LogBatch{}, 0)
		e.appendLog(r, batch(0, 3), 3)
		e.appendLog(r, store.LogBatch{First: 77}, 3)
		e.wantLog(r, 0, 3, 1<<20)
	}},
	{"final sets the log's length, alone or with records, whatever next is", func(e *env) {
		id := e.submit()
		r := e.start(id)
		b := batch(0, 3)
		b.Final = true
		e.appendLog(r, b, 3)
		a := e.job(id).Attempts[0]
		equal(e, "length", *a.LogRecords, 3)
		equal(e, "complete", a.LogsComplete(), true)
		e.appendLog(r, store.LogBatch{First: 9, Final: true}, 3)
		a = e.job(id).Attempts[0]
		equal(e, "length", *a.LogRecords, 9)
		equal(e, "complete", a.LogsComplete(), false)
	}},
	{"a log is taken after the lease is lost, after completion, and past its length", func(e *env) {
		id := e.submit()
		lost := e.start(id)
		e.pass(1)
		e.reap(1)
		e.appendLog(lost, batch(0, 3), 3)
		r := e.start(id)
		e.appendLog(r, batch(0, 2), 2)
		e.ok(e.complete(r, protocol.Succeeded)) // its log covers 5
		e.restart()
		e.appendLog(r, batch(2, 5), 5)
		e.appendLog(r, batch(5, 8), 8)
		e.appendLog(lost, batch(3, 4), 4)
		j := e.wantJob(id, store.JobSucceeded, store.AttemptLost, store.AttemptSucceeded)
		equal(e, "next of the lost one", j.Attempts[0].LogNext, 4)
		equal(e, "next", j.Attempts[1].LogNext, 8)
		equal(e, "complete", j.Attempts[1].LogsComplete(), true)
		e.wantLog(lost, 0, 4, 1<<20)
		e.wantLog(r, 0, 8, 1<<20)
	}},
	{"an unknown log is not found, an empty one is empty", func(e *env) {
		id := e.submit()
		for _, jobID := range []string{"job_x", id} {
			_, err := e.ReadLog(e.ctx, jobID, 1, 0, 1)
			e.wantErr(err, store.ErrNotFound)
		}
		r := e.lease(id)
		batches, err := e.ReadLog(e.ctx, id, r.Attempt, 0, 1)
		e.ok(err)
		equal(e, "batches", len(batches), 0)
	}},
	{"concurrent appends of one log are stored once each", func(e *env) {
		r := e.start(e.submit())
		const callers, end = 8, 60
		errs := make(chan error)
		for range callers {
			go func() {
				var err error
				for next := int64(0); next < end && err == nil; {
					next, err = e.AppendLog(e.ctx, r, batch(next, next+3))
				}
				errs <- err
			}()
		}
		for range callers {
			e.ok(<-errs)
		}
		next, err := e.LogNext(e.ctx, r)
		e.ok(err)
		e.wantLog(r, 0, next, 1<<20)
	}},
}
