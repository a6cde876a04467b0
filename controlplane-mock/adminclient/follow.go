package adminclient

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	// retryFirst and retryMax pace the way back to a server that went away: a restart takes a second
	// or two, and a person is watching.
	retryFirst = 200 * time.Millisecond
	retryMax   = 2 * time.Second
	// idleDefault is when a silent connection is replaced: short enough that a black hole is noticed
	// while one still waits, long enough to cost nothing.
	idleDefault = time.Minute
)

// FollowOptions says what to follow and what to tell on the way.
type FollowOptions struct {
	Attempt int64 // required: records of two attempts have the same numbers
	From    int64
	// GiveUp ends the attempts to reach a server that went away. 0: after ten minutes.
	GiveUp time.Duration
	Idle   time.Duration // see LogOptions; 0: one minute
	Lost   func(error)   // the connection was lost; may be nil
	Back   func()        // and is there again; may be nil
}

// Follow reads an attempt's log from o.From until it has ended, resuming by record number
// whenever the connection or the server goes away. Each record comes once and in order.
// An error that the server itself gave (unknown job, a token refused) ends it, and so does
// GiveUp, with the last error.
func (c *Client) Follow(ctx context.Context, id string, o FollowOptions) iter.Seq2[LogRecord, error] {
	if o.GiveUp <= 0 {
		o.GiveUp = 10 * time.Minute
	}
	if o.Idle <= 0 {
		o.Idle = idleDefault
	}
	return func(yield func(LogRecord, error) bool) {
		f := follower{o: o, next: o.From}
		for {
			for rec, err := range c.Logs(ctx, id, LogOptions{Attempt: o.Attempt, From: f.next, Follow: true, Idle: o.Idle}) {
				if err != nil {
					f.err = err
					break
				}
				f.reached()
				if rec.Next() <= f.next {
					continue
				}
				f.next = rec.Next()
				if !yield(rec, nil) {
					return
				}
			}
			if f.err == nil || errors.Is(f.err, ErrIdle) {
				f.err = nil
				done, err := c.logEnded(ctx, id, o.Attempt, f.next)
				if done {
					return
				}
				f.err = err
			}
			if err := f.wait(ctx); err != nil {
				yield(LogRecord{}, err)
				return
			}
		}
	}
}

// logEnded asks the job itself: a stream's end alone says nothing.
func (c *Client) logEnded(ctx context.Context, id string, attempt, next int64) (bool, error) {
	job, err := c.Job(ctx, id)
	if err != nil {
		return false, err
	}
	a := job.Attempt(attempt)
	if a == nil {
		return false, &Error{Op: "read the log of job " + id, Status: 404, Code: "not_found",
			Detail: fmt.Sprintf("job %s has no attempt %d", id, attempt)}
	}
	return a.LogEnded() && next >= a.LogNext, nil
}

// follower is the state of one Follow, owned by its loop.
type follower struct {
	o    FollowOptions
	next int64
	err  error // why the last round ended
	pace *backoff.ExponentialBackOff
	away time.Time // when the server was last heard of, while it is away
}

func (f *follower) reached() {
	if !f.away.IsZero() && f.o.Back != nil {
		f.o.Back()
	}
	f.away, f.pace = time.Time{}, nil
}

// wait pauses before the next round, or says why there is none.
func (f *follower) wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if f.pace == nil {
		f.pace = NewPace()
	}
	if f.err == nil {
		// The server is there and its stream ended early: it is shutting down, or can't hold.
		f.reached()
		f.pace = NewPace()
		return Sleep(ctx, f.pace.NextBackOff())
	}
	err := f.err
	f.err = nil
	if !Passing(err) {
		return err
	}
	if f.away.IsZero() {
		f.away = time.Now()
		if f.o.Lost != nil {
			f.o.Lost(err)
		}
	}
	if time.Since(f.away) > f.o.GiveUp {
		return err
	}
	d := f.pace.NextBackOff()
	if e, ok := errors.AsType[*Error](err); ok && e.RetryAfter > 0 {
		d = max(d, min(e.RetryAfter, 10*retryMax))
	}
	return Sleep(ctx, d)
}

// Passing says whether err may pass by itself: no answer, or one that says to come back.
func Passing(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch e.Code {
	case "", "unavailable", "throttled", "internal":
		return true
	}
	return false
}

// NewPace is the back-off towards a server that went away: full jitter, without end.
func NewPace() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(retryFirst),
		backoff.WithRandomizationFactor(1),
		backoff.WithMaxInterval(retryMax),
		backoff.WithMaxElapsedTime(0),
	)
}

// Sleep waits for d, or returns why ctx ended before.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
