package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// Fleet is many agents. Make one with New, and keep Run going.
type Fleet struct {
	cfg   Config
	admin *adminclient.Client
	born  time.Time // monotonic: the fleet's jobs carry their age by it
	name  string    // of this run, so that no two fleets' ids meet

	transports []http.RoundTripper
	stats      counters
}

// New checks the configuration; it connects to nothing.
func New(cfg Config) (*Fleet, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	f := &Fleet{cfg: cfg, born: time.Now(), name: rand.Text()[:8], transports: cfg.transports()}
	admin := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	if cfg.Transport != nil {
		admin.Transport = cfg.Transport
	}
	var err error
	f.admin, err = adminclient.New(adminclient.Config{URL: cfg.AdminURL, Token: cfg.AdminToken, HTTP: admin, UserAgent: "agentd-fleet"})
	return f, err
}

// tokenUses is how many agents share an enrolment token. A token remembers who used it.
const tokenUses = 50

// Run links the agents and lets them work until ctx ends; then it returns, with nothing left running.
// An error is for what no agent could overcome: the first token.
func (f *Fleet) Run(ctx context.Context) error {
	var agents sync.WaitGroup
	defer func() {
		agents.Wait()
		for _, t := range f.transports {
			if t, ok := t.(*http.Transport); ok {
				t.CloseIdleConnections()
			}
		}
	}()
	linkers := make(chan struct{}, f.cfg.Linkers)
	// In turn, so that those who link at the same time don't wait for each other's use of one token.
	tokens := make([]string, (f.cfg.Agents+tokenUses-1)/tokenUses)
	for i := range tokens {
		var err error
		if tokens[i], err = f.mint(ctx); err != nil {
			return err
		}
	}
	for i := range f.cfg.Agents {
		select {
		case linkers <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		a, err := f.agent(i)
		if err != nil {
			return err
		}
		mine := tokens[i%len(tokens)]
		agents.Go(func() {
			err := a.link(ctx, mine)
			<-linkers
			if err == nil {
				f.stats.linked.Add(1)
				a.work(ctx)
				f.stats.linked.Add(-1)
			}
		})
	}
	<-ctx.Done()
	return nil
}

// mint gets a token, for as long as the server needs to come up.
func (f *Fleet) mint(ctx context.Context) (string, error) {
	wait := protocol.NewBackOff(0)
	for {
		token, err := f.admin.Token(ctx, adminclient.TokenRequest{MaxUses: tokenUses, TTL: protocol.ToMillis(time.Hour)})
		if err == nil || !adminclient.IsUnreachable(err) && adminclient.CodeOf(err) != protocol.CodeUnavailable || protocol.Pause(ctx, wait, nil) != nil {
			return token, err
		}
	}
}

// payload is what the fleet's own jobs carry.
type payload struct {
	Fleet      string `json:"fleet"`
	At         int64  `json:"at"` // nanoseconds since the fleet was made, on its monotonic clock
	DurationMs int64  `json:"durationMs"`
	Job
}

// Submit hands one of the fleet's jobs in and returns its id.
func (f *Fleet) Submit(ctx context.Context, j Job) (string, error) {
	j = j.withDefaults()
	raw, err := json.Marshal(payload{Fleet: f.name, At: int64(time.Since(f.born)), DurationMs: j.Duration.Milliseconds(), Job: j})
	if err != nil {
		return "", err
	}
	job, _, err := f.admin.Submit(ctx, adminclient.Submission{Type: f.cfg.Type, Payload: raw})
	if err != nil {
		return "", err
	}
	f.stats.submitted.Add(1)
	return job.ID, nil
}

// SubmitMany hands n jobs in, with that many calls at once.
func (f *Fleet) SubmitMany(ctx context.Context, n, atOnce int, j Job) error {
	work := make(chan struct{}, n)
	for range n {
		work <- struct{}{}
	}
	close(work)
	var wg sync.WaitGroup
	faults := make(chan error, atOnce)
	for range atOnce {
		wg.Go(func() {
			for range work {
				if _, err := f.Submit(ctx, j); err != nil {
					faults <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(faults)
	return <-faults // nil when it is empty
}

// Linked waits until all agents have linked.
func (f *Fleet) Linked(ctx context.Context) error {
	return f.when(ctx, "linked", func() bool { return f.stats.linked.Load() == int64(f.cfg.Agents) })
}

// Completed waits until n jobs have been completed and acknowledged since the fleet was made.
func (f *Fleet) Completed(ctx context.Context, n int64) error {
	return f.when(ctx, "completed", func() bool { return f.stats.completed.Load() >= n })
}

// Running waits until n jobs run, accepted and not completed.
func (f *Fleet) Running(ctx context.Context, n int64) error {
	return f.when(ctx, "running", func() bool { return f.stats.running.Load() >= n })
}

func (f *Fleet) when(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("fleet: not %s: %w; so far: %v", what, context.Cause(ctx), f.Stats())
		case <-tick.C:
		}
	}
	return nil
}
