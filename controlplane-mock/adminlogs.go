package controlplane

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"agentd/controlplane-mock/store"
)

// logRequest is what GET logs asks for.
type logRequest struct {
	job     string
	attempt int64 // −1: the latest
	from    int64
	follow  bool
}

// slowReader is how long a reader may take to accept one page of a log, or its connection is cut.
const slowReader = time.Minute

// followLook is how often a follower looks by itself. With several instances an event can be lost with the one that owed it,
// and nothing else would ever wake who follows a log that has just ended.
const followLook = 10 * time.Second

// readPage is about how much of a log's stored body is read at once.
const readPage = 1 << 20

func (s *Server) readLog(c *call) error {
	id, err := c.pathID()
	if err != nil {
		return err
	}
	q, err := c.query()
	if err != nil {
		return err
	}
	req := logRequest{job: id, attempt: -1}
	if q.Has("attempt") {
		if req.attempt, err = queryRange(q, "attempt", 0, maxWireInt, 0); err != nil {
			return err
		}
	}
	if req.from, err = queryRange(q, "from", 0, maxWireInt, 0); err != nil {
		return err
	}
	if req.follow, err = queryBool(q, "follow"); err != nil {
		return err
	}
	var out logWriter
	contentType := "text/plain; charset=utf-8"
	switch q.Get("format") {
	case "", "text":
		out = &textWriter{w: c.w}
	case "ndjson":
		out, contentType = &ndjsonWriter{w: c.w}, "application/x-ndjson"
	default:
		return invalid("format: is text or ndjson")
	}
	job, err := s.store.Job(c.ctx(), id)
	if err != nil {
		return err
	}
	if _, known := pickAttempt(job, req.attempt); !known && req.attempt >= 0 {
		return notFound("no such attempt")
	}
	if req.follow {
		if !s.holds.enter("") {
			return unavailable(retryHold, "too many requests wait already")
		}
		defer s.holds.leave("")
	}
	c.w.Header().Set("Content-Type", contentType)
	c.w.Header().Set("X-Content-Type-Options", "nosniff") // a job's output is not for a browser to run
	c.w.Header().Set("Cache-Control", "no-store")
	c.wrote = true
	return s.copyLog(c, req, out)
}

// pickAttempt finds the attempt with a number, or the latest for −1.
func pickAttempt(j store.Job, number int64) (store.Attempt, bool) {
	for _, v := range slices.Backward(j.Attempts) {
		if number < 0 || v.Number == number {
			return v, true
		}
	}
	return store.Attempt{}, false
}

// copyLog writes what is stored, and with follow what comes, until the log has ended.
func (s *Server) copyLog(c *call, req logRequest, out logWriter) error {
	rc := http.NewResponseController(c.w)
	sub := s.topics.subscribe(jobTopic(req.job), logTopic(req.job))
	defer sub.close()
	look := time.NewTicker(followLook)
	defer look.Stop()
	number, next := req.attempt, req.from
	for {
		// The state before the records: what it says is complete has its records by now.
		job, err := s.store.Job(c.ctx(), req.job)
		if err != nil {
			return err
		}
		a, ok := pickAttempt(job, number)
		if ok {
			started := next
			if next, err = s.copyStored(c.ctx(), rc, req.job, a.Number, next, out); err != nil {
				return err
			}
			if next > started {
				number = a.Number // once begun, the log of this attempt and no other
			}
		}
		if !req.follow || logEnded(job, a, ok, number) {
			return out.end()
		}
		if err := rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		select {
		case <-c.ctx().Done():
			return c.ctx().Err()
		case <-s.stopping:
			return out.end()
		case <-sub.wake:
		case <-look.C:
		}
	}
}

// logEnded says whether nothing can come any more. number is the attempt that was asked for or has begun, or −1.
func logEnded(job store.Job, a store.Attempt, found bool, number int64) bool {
	if number < 0 && !job.Status.Settled() && (!found || a.State == store.AttemptReleased || a.State == store.AttemptLapsed) {
		return false // an offer that came to nothing; the next attempt is the one to follow
	}
	if !found {
		return job.Status.Settled()
	}
	return a.State.Over() && (a.LogRecords == nil || a.LogsComplete())
}

// copyStored writes the records from next on that are stored now.
func (s *Server) copyStored(ctx context.Context, rc *http.ResponseController, job string, attempt, next int64, out logWriter) (int64, error) {
	// Checked on the way in, and limits may have been lowered since.
	lim := decodeLimits{decoded: 1 << 40, record: s.cfg.Limits.Record + s.cfg.Limits.Record/4, codecs: s.codecs}
	for {
		batches, err := s.store.ReadLog(ctx, job, attempt, next, readPage)
		if err != nil || len(batches) == 0 {
			return next, err
		}
		_ = rc.SetWriteDeadline(time.Now().Add(slowReader)) // a writer without deadlines is a test's own
		before := next
		for _, b := range batches {
			n := b.First
			_, err := walk(b.Encoding, b.Body, lim, func(line []byte, r *record) error {
				start := n
				n += r.numbers()
				if n <= next {
					return nil
				}
				if start < next { // a gap that began earlier
					r.gap, start, r.exact = n-next, next, false
				}
				if r.kind == 'g' {
					if !r.timed {
						r.ts, r.timed = b.ReceivedAt.UnixMicro(), true
					}
					if r.stream == "" {
						r.stream = "agent"
					}
				}
				return out.record(start, line, r)
			})
			if err != nil {
				return next, err
			}
			next = max(next, n)
		}
		if err := out.flush(); err != nil {
			return next, err
		}
		if next == before {
			return next, nil // a store that answers below from for ever must not keep us
		}
	}
}
