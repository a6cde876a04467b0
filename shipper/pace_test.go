package shipper

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
)

// slowSender's server needs a tenth of a second for a body.
type slowSender struct{ *server }

func (v slowSender) ShipLog(ctx context.Context, ref protocol.AttemptRef, b protocol.LogBody) (protocol.Next, error) {
	time.Sleep(100 * time.Millisecond)
	return v.server.ShipLog(ctx, ref, b)
}

// TestAServerThatKeepsUpSparesTheDisk: a job prints faster than the server takes its log, but the server takes
// it. The job is held; the spool stays empty; all of it arrives.
func TestAServerThatKeepsUpSparesTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		r := start(t, v, Config{QueueFile: t.TempDir() + "/q", Memory: 1 << 20, Spool: m, Sender: slowSender{v}, Compression: "none"})
		l := r.open("job")
		text := strings.Repeat("a line of forty bytes, newline included\n", 200_000) // 8 MB through 1 MB of memory
		r.print(l, protocol.Stdout, text)
		l.Close()
		r.flush()
		r.want("job", text)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.appends != 0 {
			t.Errorf("%d appends to the spool, want none while the server takes the log", m.appends)
		}
	})
}

// TestAServerThatStopsAnsweringHoldsNobody: then the job prints on, into the spool.
func TestAServerThatStopsAnsweringHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		r := start(t, v, Config{QueueFile: t.TempDir() + "/q", Memory: 1 << 20, Spool: m, Sender: v, Compression: "none"})
		l := r.open("job")
		r.print(l, protocol.Stdout, "the server takes this\n")
		time.Sleep(time.Second)
		v.away()
		began := time.Now()
		text := strings.Repeat("a line of forty bytes, newline included\n", 200_000)
		r.print(l, protocol.Stdout, text)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("printing took %v while the server was away", took)
		}
		l.Close()
		v.mu.Lock()
		v.fault = nil
		v.mu.Unlock()
		r.flush()
		r.want("job", "the server takes this\n"+text)
	})
}
