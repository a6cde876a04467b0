package shipper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"agentd/agent/protocol"
	"agentd/spool"
)

type mortalSender struct {
	*server
	dead bool
}

// The oracle holds whatever happens: random output on both streams, random answers of the server,
// a spool that comes and goes, kills and restarts. At the end every attempt's log is dense, in order
// and byte-exact, and the invariant's sum is right all the way.
func TestInvariants1To3NothingLostNothingTwice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		steps := rapid.SliceOfN(rapid.IntRange(0, 9), 5, 40).Draw(rt, "steps")
		withSpool := rapid.Bool().Draw(rt, "spool")
		bubble(t, func(t *testing.T) { story(t, seed, steps, withSpool) })
		if t.Failed() {
			rt.Fatalf("seed %d steps %v spool %v", seed, steps, withSpool)
		}
	})
}

// What a process that was killed still tries goes nowhere.
type mortalSpool struct {
	*memSpool
	dead bool
}

var errKilled = errors.New("killed")

func (m *mortalSpool) Append(ctx context.Context, b ...spool.Batch) error {
	if m.dead {
		return errKilled
	}
	return m.memSpool.Append(ctx, b...)
}

func (m *mortalSpool) Ack(key string, next int64) {
	if !m.dead {
		m.memSpool.Ack(key, next)
	}
}

func (v *mortalSender) ShipLog(ctx context.Context, ref protocol.AttemptRef, b protocol.LogBody) (protocol.Next, error) {
	if v.dead {
		return protocol.Next{}, errKilled
	}
	return v.server.ShipLog(ctx, ref, b)
}

func (r *rig) stopAnyhow() {
	r.anyEnd = true
	r.stop()
}

func story(t *testing.T, seed uint64, steps []int, withSpool bool) {
	random := rand.New(rand.NewPCG(seed, 9))
	v, m := newServer(), newMemSpool()
	dir := t.TempDir()
	lives := 0
	dead := int64(0) // over all lives
	begin := func(queue string) *rig {
		cfg := Config{QueueFile: queue, Memory: 1 << 20, MaxLine: 1 << 10, Sender: &mortalSender{server: v}, Logger: zap.NewNop()}
		if withSpool {
			cfg.Spool = &mortalSpool{memSpool: m}
		}
		return start(t, v, cfg)
	}
	r := begin(filepath.Join(dir, "q0"))
	printed := map[string][]byte{}
	logs := map[string]*Log{}
	for _, step := range steps {
		switch step {
		case 0, 1, 2: // somebody prints
			name := fmt.Sprintf("life%d-%d", lives, random.IntN(3))
			if logs[name] == nil {
				logs[name] = r.open(name)
			}
			p := []byte(strings.Repeat(fmt.Sprintf("%d of %s, step %d\n", random.Uint32(), name, step), random.IntN(300)))
			if random.IntN(3) == 0 {
				p = append(p, strings.Repeat("no newline ", random.IntN(500))...)
			}
			if err := logs[name].write(streamOut, p); err != nil {
				t.Fatal(err)
			}
			printed[name] = append(printed[name], p...)
		case 3, 4:
			time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
		case 5: // the server is away
			v.away()
		case 6: // or has a bad hour
			faults := []*fault{nil, {err: errCut}, {err: errCut, commit: true}, {err: answer(500, protocol.CodeInternal)}, {hang: true, commit: true},
				{err: answer(400, protocol.CodeCorrupt)}, {err: answer(413, "")}, {err: answer(503, protocol.CodeUnavailable)}, {err: answer(401, protocol.CodeUnauthenticated)}}
			own := rand.New(rand.NewPCG(random.Uint64(), 1))
			v.mu.Lock()
			v.fault = func(_ protocol.AttemptRef, b protocol.LogBody) *fault {
				f := faults[own.IntN(len(faults))]
				if f != nil && protocol.ActionFor(f.err) == protocol.Rebuild && own.IntN(3) > 0 {
					return nil // three times in a row it would be dead-lettered, and that is another test
				}
				return f
			}
			v.mu.Unlock()
		case 7:
			v.mu.Lock()
			v.fault = nil
			v.mu.Unlock()
			m.mu.Lock()
			m.err = nil
			m.mu.Unlock()
		case 8:
			m.mu.Lock()
			m.err = spool.ErrFull
			m.mu.Unlock()
		case 9: // killed, and started again
			synctest.Wait()
			b, err := os.ReadFile(r.cfg.QueueFile)
			if err != nil {
				t.Fatal(err)
			}
			dead += r.Stats().Dead
			r.cfg.Sender.(*mortalSender).dead = true
			if withSpool {
				r.cfg.Spool.(*mortalSpool).dead = true
			}
			r.stopAnyhow()
			lives++
			next := filepath.Join(dir, fmt.Sprint("q", lives))
			if err := os.WriteFile(next, b, 0o600); err != nil {
				t.Fatal(err)
			}
			r = begin(next)
			logs = map[string]*Log{}
		}
		r.balance()
	}
	v.mu.Lock()
	v.fault = nil
	v.mu.Unlock()
	m.mu.Lock()
	m.err = nil
	m.mu.Unlock()
	for _, l := range logs {
		l.Close()
	}
	r.flush()
	if dead += r.Stats().Dead; dead == 0 {
		for name, p := range printed {
			r.want(name, string(p))
		}
	}
}
