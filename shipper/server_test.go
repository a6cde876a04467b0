package shipper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
)

// fault is what goes wrong with one request; nil = nothing.
type fault struct {
	err    error // the answer
	commit bool  // after the server has stored the body
	hang   bool  // until the client gives up, which a client does after 30 s
}

// server models the log endpoint of a control plane by the words of protocol.md §4.
type server struct {
	mu       sync.Mutex
	logs     map[string]*serverLog
	fault    func(ref protocol.AttemptRef, b protocol.LogBody) *fault // called for each ShipLog, under mu
	noAsk    error                                                    // what LogNext answers
	requests int
	bodies   []protocol.LogBody // of every request, frames dropped
	largest  int64
	broken   []string // what no server should ever see
}

type serverLog struct {
	records []protocol.Record
	next    int64
	final   int64 // -1 = never said
}

func newServer() *server { return &server{logs: map[string]*serverLog{}} }

func (v *server) log(ref protocol.AttemptRef) *serverLog {
	l := v.logs[keyOf(ref)]
	if l == nil {
		l = &serverLog{final: -1}
		v.logs[keyOf(ref)] = l
	}
	return l
}

func answer(status int, code protocol.Code) error {
	return &protocol.Error{Op: "ship log", Status: status, Code: code}
}

func (v *server) ShipLog(ctx context.Context, ref protocol.AttemptRef, b protocol.LogBody) (protocol.Next, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.requests++
	var data []byte
	for _, f := range b.Frames {
		data = append(data, f...)
	}
	v.largest = max(v.largest, int64(len(data)))
	noted := b
	noted.Frames = nil
	v.bodies = append(v.bodies, noted)
	if v.fault != nil {
		if f := v.fault(ref, b); f != nil {
			if f.hang {
				v.mu.Unlock()
				ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
				<-ctx.Done()
				cancel()
				v.mu.Lock()
			}
			if f.commit {
				v.store(ref, b, data)
			}
			if _, said := errors.AsType[*protocol.Error](f.err); said {
				return protocol.Next{}, f.err
			}
			if f.err != nil || f.hang {
				return protocol.Next{}, &protocol.Error{Op: "ship log", Err: errors.Join(f.err, context.DeadlineExceeded)}
			}
		}
	}
	return v.store(ref, b, data)
}

func (v *server) store(ref protocol.AttemptRef, b protocol.LogBody, data []byte) (protocol.Next, error) {
	l := v.log(ref)
	id, ok := encodingOf(b.Encoding)
	if !ok {
		return protocol.Next{}, answer(415, protocol.CodeInvalid)
	}
	text, err := decodeUpTo(data, id, 32<<20) // the protocol's limit
	if err != nil {
		v.broken = append(v.broken, err.Error())
		return protocol.Next{}, answer(400, protocol.CodeCorrupt)
	}
	n, at := b.First, b.First
	var fresh []protocol.Record
	for line := range bytes.Lines(text) {
		r, err := protocol.ParseRecord(line)
		if err != nil {
			v.broken = append(v.broken, fmt.Sprintf("%q: %v", line, err))
			return protocol.Next{}, answer(400, protocol.CodeInvalid)
		}
		k := r.Numbers()
		if n+k > l.next {
			if n < l.next && r.Gap > 0 {
				r.Gap = n + k - l.next
			}
			fresh = append(fresh, r)
		}
		n += k
	}
	if n-at != b.Count {
		v.broken = append(v.broken, fmt.Sprintf("count %d, and %d in the body", b.Count, n-at))
		return protocol.Next{}, answer(400, protocol.CodeCorrupt)
	}
	if b.First > l.next && b.Count > 0 {
		return protocol.Next{}, &protocol.Error{Status: 409, Code: protocol.CodeLogGap, Next: l.next}
	}
	if n > l.next {
		l.records = append(l.records, fresh...)
		l.next = n
	}
	if b.Final {
		l.final = b.First + b.Count
	}
	return protocol.Next{Next: l.next}, nil
}

func (v *server) LogNext(_ context.Context, ref protocol.AttemptRef) (protocol.Next, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.noAsk != nil {
		return protocol.Next{}, v.noAsk
	}
	return protocol.Next{Next: v.log(ref).next}, nil
}

// text joins a stream's records; a gap shows as such.
func (v *server) text(ref protocol.AttemptRef, stream protocol.Stream) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var b bytes.Buffer
	for _, r := range v.log(ref).records {
		switch {
		case r.Gap > 0:
			fmt.Fprintf(&b, "<gap %d %s>", r.Gap, r.Reason)
		case r.Stream == stream:
			b.WriteString(r.Text)
			b.Write(r.Bytes)
			if !r.Part && !r.EOF {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

func (v *server) records(ref protocol.AttemptRef) []protocol.Record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]protocol.Record(nil), v.log(ref).records...)
}

// rig is a shipper at work on a model server.
type rig struct {
	t *testing.T
	*Shipper
	server        *server
	cfg           Config
	stop          func()
	stopExpecting func(error)
	anyEnd        bool
}

func ref(job string) protocol.AttemptRef {
	return protocol.AttemptRef{JobID: job, Attempt: 1, LeaseToken: "token"}
}

func config(t *testing.T, v *server) Config {
	return Config{QueueFile: filepath.Join(t.TempDir(), "queue"), Memory: 1 << 20, MaxLine: 4 << 10, Sender: v, Logger: zap.NewNop()}
}

// start opens a shipper and runs it.
func start(t *testing.T, v *server, cfg Config) *rig {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.SetServer(8<<20, []string{"zstd", "gzip", "snappy"})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	r := &rig{t: t, Shipper: s, server: v, cfg: cfg}
	r.stopExpecting = func(want error) {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; !errors.Is(err, want) && !r.anyEnd {
			t.Errorf("Run ended with %v, want %v", err, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	r.stop = func() { r.stopExpecting(nil) }
	t.Cleanup(r.stop)
	return r
}

func (r *rig) open(job string) *Log {
	r.t.Helper()
	l, err := r.Open(ref(job))
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// print is what a job does.
func (r *rig) print(l *Log, stream protocol.Stream, text string) {
	r.t.Helper()
	if _, err := l.Stream(stream).ReadFrom(bytes.NewReader([]byte(text))); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) flush() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour) // of the bubble's time
	defer cancel()
	if err := r.Flush(ctx); err != nil {
		r.t.Fatalf("flush: %v; %+v", err, r.Stats())
	}
	r.balance()
}

// balance checks the invariant of the way of a line.
func (r *rig) balance() {
	r.t.Helper()
	synctest.Wait() // between a batch and its count there is a moment
	st := r.Stats()
	if got := st.Acked + st.Memory + st.Spool + st.Dead + st.Gaps; got != st.Accepted {
		r.t.Errorf("accepted %d, but acked %d + memory %d + spool %d + dead %d + gaps %d = %d", st.Accepted, st.Acked, st.Memory, st.Spool, st.Dead, st.Gaps, got)
	}
}

func (r *rig) want(job, text string) {
	r.t.Helper()
	if got := r.server.text(ref(job), protocol.Stdout); got != text {
		r.t.Errorf("%s: server has %s, want %s", job, brief(got), brief(text))
	}
	for _, b := range r.server.broken {
		r.t.Errorf("server saw: %s", b)
	}
}

func brief(s string) string {
	if len(s) > 200 {
		return fmt.Sprintf("%d bytes %q…%q", len(s), s[:90], s[len(s)-90:])
	}
	return fmt.Sprintf("%q", s)
}

// numbered is the oracle's output: lines n=from..to.
func numbered(from, to int) string {
	var b bytes.Buffer
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "n=%d some more text to fill the line\n", i)
	}
	return b.String()
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
