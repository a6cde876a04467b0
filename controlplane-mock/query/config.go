package query

import (
	"cmp"
	"errors"
	"time"
)

// The errors of a broker. Ask answers the first three, Answer the last two.
var (
	// ErrUnavailable: no present worker holds the connector. It comes at once: a person is watching a spinner.
	ErrUnavailable = errors.New("query: no worker for this connector is present")
	// ErrBusy: the type's queue is full, or too many askers wait.
	ErrBusy = errors.New("query: too many queries are waiting")
	// ErrTimeout: no answer came within the time that the asker gave.
	ErrTimeout = errors.New("query: no answer in time")
	// ErrGone: answered, withdrawn, timed out, lost with a restart, or never known: all alike.
	ErrGone = errors.New("query: gone")
	// ErrFenced: the query is leased, but not under this token or not to this agent.
	ErrFenced = errors.New("query: leased to somebody else")
)

// WorkerError is a worker's own word on why there is no page.
type WorkerError struct {
	Code       string
	RetryAfter time.Duration // 0: none
}

func (e *WorkerError) Error() string { return "query: worker: " + e.Code }

// Config bounds a broker. Zero values are the documented defaults.
type Config struct {
	MaxWaiting int           // queries of one type waiting, not handed out; 64
	MaxBatch   int           // queries in one poll's answer; 16
	MaxAskers  int           // askers at once, over all types; 1024
	MaxLife    time.Duration // of a query; 60 s
	MaxWait    time.Duration // of a poll; 50 s
	// PresentFor is how long a poll speaks for its worker. It must exceed the longest poll: a worker that
	// is being held would otherwise fade while it waits. 60 s.
	PresentFor time.Duration
	// MaxPresent bounds the table of (worker, type, connector); 100,000. Above it newcomers get no queries.
	MaxPresent int
}

func (c Config) withDefaults() Config {
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 64)
	c.MaxBatch = cmp.Or(c.MaxBatch, 16)
	c.MaxAskers = cmp.Or(c.MaxAskers, 1024)
	c.MaxLife = cmp.Or(c.MaxLife, time.Minute)
	c.MaxWait = cmp.Or(c.MaxWait, 50*time.Second)
	c.PresentFor = cmp.Or(c.PresentFor, time.Minute)
	c.MaxPresent = cmp.Or(c.MaxPresent, 100_000)
	return c
}

func (c Config) validate() error {
	var faults []error
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"maxWaiting must be positive", c.MaxWaiting > 0},
		{"maxBatch must be positive", c.MaxBatch > 0},
		{"maxAskers must be positive", c.MaxAskers > 0},
		{"maxLife must be positive", c.MaxLife > 0},
		{"maxWait must be positive", c.MaxWait > 0},
		{"presentFor must exceed maxWait", c.PresentFor > c.MaxWait},
		{"maxPresent must be positive", c.MaxPresent > 0},
	} {
		if !f.ok {
			faults = append(faults, errors.New("query: "+f.name))
		}
	}
	return errors.Join(faults...)
}
