package shipper

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"agentd/agent/protocol"
)

// halfTaker accepts bodies, and stores only what lies below a bound.
type halfTaker struct {
	*server
	bound int64
}

func (h *halfTaker) ShipLog(ctx context.Context, ref protocol.AttemptRef, b protocol.LogBody) (protocol.Next, error) {
	if b.First+b.Count > h.bound {
		return protocol.Next{Next: min(h.bound, b.First)}, nil
	}
	return h.server.ShipLog(ctx, ref, b)
}

func TestInvariant4OnlyNextForgets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		cfg := config(t, v)
		half := &halfTaker{v, 10}
		cfg.Sender = half
		r := start(t, v, cfg)
		l := r.open("a")
		for i := range 4 {
			r.print(l, protocol.Stdout, numbered(5*i+1, 5*i+5))
			time.Sleep(time.Second)
		}
		l.Close()
		time.Sleep(time.Hour)
		synctest.Wait()
		if st := r.Stats(); st.Acked != 10 || st.Memory != 10 || st.Attempts[0].Shipped != 10 {
			t.Errorf("%+v; want 10 acknowledged, and the other 10 held although their bodies were answered with 200", st)
		}
		half.bound = 1000
		r.flush()
		r.want("a", numbered(1, 20))
	})
}

// L4: the job is over for the agent while its log is still here: it ships all the same, with one
// line in the agent's own log for the trouble and one for its end.
func TestL4LateLinesArriveAndAreReportedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		core, seen := observer.New(zapcore.InfoLevel)
		cfg := config(t, v)
		cfg.Memory = 16 << 20
		cfg.Logger = zap.New(core)
		v.fault = func(protocol.AttemptRef, protocol.LogBody) *fault {
			if v.requests <= 25 {
				return &fault{err: answer(409, protocol.CodeLeaseLost)}
			}
			return nil
		}
		r := start(t, v, cfg)
		l := r.open("a")
		text := strings.Repeat(numbered(1, 1000), 5<<20/len(numbered(1, 1000)))
		r.print(l, protocol.Stdout, text)
		l.Close()
		r.Final(ref("a"))
		r.flush()
		r.want("a", text)
		if n := seen.Len(); n != 2 {
			t.Errorf("%d lines were logged, want 2: %+v", n, seen.All())
		}
		if f := v.log(ref("a")).final; f != int64(strings.Count(text, "\n")) {
			t.Errorf("final at %d", f)
		}
	})
}
