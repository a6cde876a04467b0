package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
)

const (
	// pollWait is how long an activation is held: a poll a half minute keeps the agent present (60 s) with one to spare.
	pollWait = 30 * time.Second
	// margin is left of a query's time for its answer to travel: an answer that would arrive later is of use to nobody.
	margin = 20 * time.Millisecond
	// MaxPage bounds a page in bytes: the protocol's 1 MiB for a JSON body, less what is around it.
	MaxPage = 1<<20 - 4096
)

// Client is the control plane. protocol.Client is one.
type Client interface {
	Activate(ctx context.Context, r protocol.Activation) ([]protocol.Query, error)
	Answer(ctx context.Context, queryID string, r protocol.Answer) error
}

// Handler answers one query before ctx ends. It may be called concurrently. q.Query is cleared when it
// returns: what it keeps it must copy. A *Failure tells the asker a code; any other error is connector_failed.
type Handler func(ctx context.Context, q protocol.Query) (protocol.Page, error)

// Config says what is answered, by whom. Type, Connectors, Client and Handler are required.
type Config struct {
	Type        string
	Connectors  []string
	Concurrency int // queries at once; 4
	Worker      string
	Client      Client
	Handler     Handler
	// Report is told of each activation's end, nil or not, so that the agent's identity and status learn from
	// it. It may block to hold the next activation back (revoked, conflict). nil: nobody.
	Report func(ctx context.Context, err error)
	// Beat is told that the loop makes progress, and within what time it will again. nil: nobody.
	Beat   func(within time.Duration)
	Logger *zap.Logger
}

func (c Config) withDefaults() Config {
	if c.Concurrency == 0 {
		c.Concurrency = 4
	}
	if c.Report == nil {
		c.Report = func(context.Context, error) {}
	}
	if c.Beat == nil {
		c.Beat = func(time.Duration) {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	if c.Type == "" {
		faults = append(faults, errors.New("query: type is missing"))
	}
	if len(c.Connectors) == 0 {
		faults = append(faults, errors.New("query: connectors are missing"))
	}
	if c.Concurrency < 1 {
		faults = append(faults, fmt.Errorf("query: concurrency must be at least 1, not %d", c.Concurrency))
	}
	if c.Client == nil || c.Handler == nil {
		faults = append(faults, errors.New("query: client and handler are needed"))
	}
	return errors.Join(faults...)
}

// Poller answers the queries of one type.
type Poller struct {
	cfg   Config
	stats counters
}

// Stats counts queries since the start; nothing in it tells one query from another.
type Stats struct{ Answered, Failed, Late, Unsent int64 }

type counters struct{ answered, failed, late, unsent atomic.Int64 }

// New checks cfg and starts nothing.
func New(cfg Config) (*Poller, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Poller{cfg: cfg}, nil
}

// Stats is what happened so far. Late: the deadline passed, nothing was sent. Unsent: the answer reached nobody.
func (p *Poller) Stats() Stats {
	return Stats{p.stats.answered.Load(), p.stats.failed.Load(), p.stats.late.Load(), p.stats.unsent.Load()}
}

// Run asks for queries while taking lives and answers them; those under way are finished, within their
// deadlines, before it returns. When working ends they are given up.
func (p *Poller) Run(taking, working context.Context) error {
	var answers sync.WaitGroup
	defer answers.Wait()
	places := make(chan struct{}, p.cfg.Concurrency)
	pace := protocol.NewBackOff(0)
	failing := 0
	var since time.Time
	for {
		free := p.free(taking, places)
		if free == 0 {
			return nil
		}
		p.cfg.Beat(pollWait + 15*time.Second)
		got, err := p.cfg.Client.Activate(taking, protocol.Activation{
			Type: p.cfg.Type, Worker: p.cfg.Worker, Connectors: p.cfg.Connectors, MaxQueries: free, Wait: protocol.ToMillis(pollWait),
		})
		if taking.Err() != nil && len(got) == 0 {
			return nil
		}
		for _, q := range got[:min(len(got), free)] { // a server that sends more than was asked for sheds them by their deadlines
			places <- struct{}{}
			arrived := time.Now()
			answers.Go(func() {
				defer func() { <-places }()
				p.answer(working, q, arrived)
			})
		}
		p.cfg.Report(taking, err)
		if err != nil {
			if failing++; failing == 1 {
				since = time.Now()
				p.cfg.Logger.Warn("could not ask for queries", zap.String("type", p.cfg.Type), zap.Error(err))
			}
			p.cfg.Beat(protocol.LongestBackOff + 10*time.Minute) // Retry-After is at most 10 min
			if protocol.Pause(taking, pace, err) != nil {
				return nil
			}
			continue
		}
		if failing > 0 {
			p.cfg.Logger.Info("asked for queries again", zap.String("type", p.cfg.Type), zap.Int("failures", failing), zap.Duration("after", time.Since(since)))
			failing = 0
		}
		pace.Reset()
	}
}

// free waits for at least one free place and returns how many there are; 0 when ctx ended.
func (p *Poller) free(ctx context.Context, places chan struct{}) int {
	// The loop is alive while all places are taken: each is freed by its query's deadline.
	p.cfg.Beat(time.Minute)
	select {
	case <-ctx.Done():
		return 0
	case places <- struct{}{}:
		<-places
	}
	return cap(places) - len(places)
}

// answer handles one query and sends what came of it, unless its time is over.
func (p *Poller) answer(ctx context.Context, q protocol.Query, arrived time.Time) {
	defer clear(q.Query)
	ctx, cancel := context.WithDeadline(ctx, arrived.Add(q.Remaining.Duration()-margin))
	defer cancel()
	page, err := p.cfg.Handler(ctx, q)
	defer wipe(page)
	if ctx.Err() != nil {
		p.stats.late.Add(1)
		return
	}
	a := protocol.Answer{Worker: p.cfg.Worker, LeaseToken: q.LeaseToken}
	switch {
	case err != nil:
		a.Error = wire(err)
	case size(page) > MaxPage:
		a.Error = &protocol.QueryError{Code: CodeTooBig}
	default:
		if page.Items == nil {
			page.Items = []json.RawMessage{}
		}
		a.Page = &page
	}
	if err := p.send(ctx, q.ID, a); err != nil {
		p.stats.unsent.Add(1)
		return
	}
	if a.Error != nil {
		p.stats.failed.Add(1)
	} else {
		p.stats.answered.Add(1)
	}
}

// send tries until the answer arrived, is wanted no more, or its time is over: a person waits, so a lost
// connection is worth another try at once, and nothing is worth one after the deadline.
func (p *Poller) send(ctx context.Context, id string, a protocol.Answer) error {
	pace := protocol.NewBackOff(protocol.FirstBackOff)
	for {
		err := p.cfg.Client.Answer(ctx, id, a)
		switch protocol.ActionFor(err) {
		case protocol.Proceed:
			return nil
		case protocol.Retry, protocol.Throttle:
			if protocol.Pause(ctx, pace, err) != nil {
				return err
			}
		default:
			return err
		}
	}
}

func size(page protocol.Page) (n int) {
	for _, item := range page.Items {
		n += len(item) + 1
	}
	return n + len(page.Next)
}

// wipe clears a page's bytes.
func wipe(page protocol.Page) {
	for _, item := range page.Items {
		clear(item)
	}
}

// Within gives h at most d for a query, whatever the asker's patience.
func Within(d time.Duration, h Handler) Handler {
	return func(ctx context.Context, q protocol.Query) (protocol.Page, error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		page, err := h(ctx, q)
		if err != nil && ctx.Err() != nil {
			err = &Failure{Code: CodeTimeout}
		}
		return page, err
	}
}
