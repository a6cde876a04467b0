package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/identity"
	"agentd/agent/protocol"
)

// world is an agent among fakes, inside a synctest bubble.
type world struct {
	*Agent
	plane   *fakePlane
	ident   *fakeIdent
	journal *fakeJournal
	logs    *fakeLogs
	runner  *fakeRunner
	stop    context.CancelFunc
	ended   chan struct{}
	err     error
}

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	cfg.Server, cfg.Name = "http://127.0.0.1:1", "test"
	cfg = cfg.withDefaults()
	w := &world{
		plane: newFakePlane(), ident: &fakeIdent{state: identity.Linked, link: protocol.Link{PollWait: 30000}}, journal: &fakeJournal{free: 100},
		logs: &fakeLogs{changed: make(chan struct{})}, runner: &fakeRunner{}, ended: make(chan struct{}),
	}
	start := time.Now()
	w.Agent = newAgent(cfg, parts{
		plane: w.plane, ident: w.ident, journal: w.journal, logs: w.logs, runner: w.runner, bootID: "boot-1",
		clock: func() time.Duration { return time.Since(start) },
	})
	w.ident.linked = w.linked
	return w
}

// begin runs the agent; end stops it and waits.
func (w *world) begin(t *testing.T) {
	t.Helper()
	var ctx context.Context
	ctx, w.stop = context.WithCancel(t.Context())
	go func() {
		w.err = w.Run(ctx)
		close(w.ended)
	}()
	t.Cleanup(func() { w.stop() })
	synctest.Wait()
}

func (w *world) end(t *testing.T) {
	t.Helper()
	w.stop()
	<-w.ended
	if w.err != nil {
		t.Fatalf("Run: %v", w.err)
	}
	// Whatever happened, the counters are back (J10).
	if n, m := w.active(), w.unsettled(); n != 0 || m != 0 {
		t.Errorf("after the end %d slots are taken and %d attempts unsettled, want none", n, m)
	}
	if !w.logs.closed.Load() {
		t.Error("the logs were not brought to the disk")
	}
}

// takes is a handler whose jobs take d, or until they are told to end.
func takes(d time.Duration) Handler {
	return HandlerFunc(func(ctx context.Context, _ *Attempt) Result {
		select {
		case <-time.After(d):
			return Result{}
		case <-ctx.Done():
			return Result{Outcome: protocol.Cancelled, ExitCode: 143, Signal: "SIGTERM", Cause: context.Cause(ctx)}
		}
	})
}

func wait(d time.Duration) { <-time.After(d) }

var errAway = &protocol.Error{Op: "test", Err: errors.New("connection refused")}
