package shipper

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"agentd/agent/protocol"
	"agentd/spool"
)

// The child of the crash matrix: this test binary once more. It reads real pipes, ships to the test over HTTP, and
// tells on its standard output where it stands, so that the test knows in which moment its kill has hit.

const childEnv = "AGENTD_TEST_SHIPPER_CHILD"

type wireShip struct {
	Ref  protocol.AttemptRef
	Body protocol.LogBody
	Ask  bool
}

type wireAnswer struct {
	Next   int64
	Failed bool
}

// remote is a Sender whose server is in another process.
type remote struct{ url string }

func (r remote) call(ctx context.Context, m wireShip) (protocol.Next, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(m); err != nil {
		return protocol.Next{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, &b)
	if err != nil {
		return protocol.Next{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return protocol.Next{}, err
	}
	defer resp.Body.Close()
	var a wireAnswer
	if err := gob.NewDecoder(resp.Body).Decode(&a); err != nil {
		return protocol.Next{}, err
	}
	if a.Failed {
		return protocol.Next{}, answer(503, protocol.CodeUnavailable)
	}
	return protocol.Next{Next: a.Next}, nil
}

func (r remote) ShipLog(ctx context.Context, ref protocol.AttemptRef, b protocol.LogBody) (protocol.Next, error) {
	return r.call(ctx, wireShip{Ref: ref, Body: b})
}

func (r remote) LogNext(ctx context.Context, ref protocol.AttemptRef) (protocol.Next, error) {
	return r.call(ctx, wireShip{Ref: ref, Ask: true})
}

// crashChild is the child's whole life. It ends by SIGKILL; a line on standard input makes it stop, and be killed in the
// middle of that.
func crashChild(dir, url, job string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
	c, err := crashShipper(dir, url)
	if err != nil {
		fail(err)
	}
	l, err := c.Open(ref(job))
	if err != nil {
		fail(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg, readers sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	readers.Go(func() { l.Stream(protocol.Stdout).ReadFrom(os.NewFile(3, "out")) })
	readers.Go(func() { l.Stream(protocol.Stderr).ReadFrom(os.NewFile(4, "err")) })
	wg.Go(func() {
		if n, _ := os.Stdin.Read(make([]byte, 1)); n == 1 {
			cancel()
		}
	})
	for ctx.Err() == nil {
		c.tell()
		<-time.After(2 * time.Millisecond)
	}
	wg.Wait()
	c.stopSpool()
	c.say("stopped")
	readers.Wait() // for ever: the pipes stay open
}

// crashed is a shipper with its spool, as the child and, at the end, the test run it.
type crashed struct {
	*Shipper

	stopSpool func()
	mu        sync.Mutex
	said      string // guarded by mu
}

func crashShipper(dir, url string) (*crashed, error) {
	c := &crashed{}
	log := zap.New(zapcore.NewNopCore())
	if os.Getenv(childEnv) != "" {
		log = zap.New(zapcore.RegisterHooks(sink{}, func(e zapcore.Entry) error {
			switch e.Message {
			case "epoch is being sealed":
				c.say("sealing")
			case "epoch was sealed":
				c.say("sealed")
			}
			return nil
		}))
	}
	sp, err := spool.Open(spool.Config{Dir: filepath.Join(dir, "spool"), MaxSize: 1 << 30, EpochSize: 8 << 20, MinFree: -1, Logger: log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { sp.Run(ctx) })
	c.stopSpool = func() { cancel(); wg.Wait() }
	c.Shipper, err = New(Config{
		QueueFile: filepath.Join(dir, "queue"), Memory: 4 << 20, MaxLine: 8 << 10, Sender: remote{url}, Spool: &tellingSpool{sp, c},
	})
	if err != nil {
		return nil, err
	}
	c.SetServer(8<<20, []string{"zstd", "gzip", "snappy"})
	return c, nil
}

// say writes one word about where the child stands, once.
func (c *crashed) say(what string) {
	if os.Getenv(childEnv) == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if what != c.said {
		c.said = what
		fmt.Println(what) // one write: a kill doesn't cut it
	}
}

// tell says where the records are: "stats", then 1 or 0 for records in memory, in the spool, acknowledged by the server.
func (c *crashed) tell() {
	st := c.Stats()
	bit := func(n int64) int { return int(min(n, 1)) }
	c.say(fmt.Sprintf("stats %d %d %d", bit(st.Memory), bit(st.Spool), bit(st.Acked)))
}

// tellingSpool says when the spool is being written.
type tellingSpool struct {
	*spool.Spool

	c *crashed
}

func (s *tellingSpool) Append(ctx context.Context, batches ...spool.Batch) error {
	s.c.say("spilling")
	defer s.c.say("spilled")
	return s.Spool.Append(ctx, batches...)
}

// sink takes every entry and writes none.
type sink struct{}

func (sink) Enabled(zapcore.Level) bool                 { return true }
func (s sink) With([]zapcore.Field) zapcore.Core        { return s }
func (sink) Write(zapcore.Entry, []zapcore.Field) error { return nil }
func (sink) Sync() error                                { return nil }
func (s sink) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return c.AddCore(e, s)
}
