package shipper

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/spool"
)

// stuckSpool never answers Append until it is let go.
type stuckSpool struct {
	*memSpool
	letGo chan struct{}
}

func (m stuckSpool) Append(ctx context.Context, b ...spool.Batch) error {
	<-m.letGo
	return m.memSpool.Append(ctx, b...)
}

func TestAliveNamesALoopThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newServer()
		m := stuckSpool{newMemSpool(), make(chan struct{})}
		r := start(t, v, Config{QueueFile: t.TempDir() + "/q", Memory: 1 << 20, Spool: m, Sender: v})
		if err := r.Alive(); err != nil {
			t.Errorf("at the start: %v", err)
		}
		v.away()
		l := r.open("job")
		r.print(l, protocol.Stdout, "a line\n")
		time.Sleep(30 * time.Second)
		if err := r.Alive(); err != nil {
			t.Errorf("after half a minute: %v, want nil: disks may be slow", err)
		}
		time.Sleep(time.Minute)
		if err := r.Alive(); err == nil || !strings.Contains(err.Error(), "the spool has been taking one group") {
			t.Errorf("got %v, want the spool named", err)
		}
		close(m.letGo)
		time.Sleep(time.Second)
		if err := r.Alive(); err != nil {
			t.Errorf("after it went on: %v", err)
		}
		// A server that is away for hours is no loop that is stuck.
		time.Sleep(5 * time.Hour)
		if err := r.Alive(); err != nil {
			t.Errorf("in a long outage: %v", err)
		}
		r.mu.Lock()
		if err := r.Alive(); err != nil {
			t.Errorf("while a step is made: %v", err)
		}
		r.stamps.lockedOut.Store(time.Now().Add(-2 * time.Minute).UnixNano()) // a bubble's time stands still while a mutex is waited for
		err := r.Alive()
		r.mu.Unlock()
		if err == nil || !strings.Contains(err.Error(), "one step has taken") {
			t.Errorf("got %v, want a step that never ends", err)
		}
		l.Close()
		v.mu.Lock()
		v.fault = nil
		v.mu.Unlock()
		r.flush()
	})
}

// What an earlier process had read and not sealed is due at once, and not since 1970.
func TestAliveAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		v.away()
		cfg := config(t, v)
		r := start(t, v, cfg)
		r.print(r.open("job"), protocol.Stdout, "begun, and not en")
		b, err := os.ReadFile(cfg.QueueFile)
		if err != nil {
			t.Fatal(err)
		}
		cfg.QueueFile += "-left"
		if err := os.WriteFile(cfg.QueueFile, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if len(s.Recovered()) != 1 || s.order[0].log.due() == 0 {
			t.Fatalf("nothing waits to be sealed: %+v", s.Recovered())
		}
		if err := s.Alive(); err != nil {
			t.Errorf("before its first step: %v, want nil", err)
		}
	})
}
