package shipper

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent/protocol"
)

// The crash matrix. A child (crashchild_test.go) reads real pipes whose other ends the test holds, and ships to the test.
// It is killed at random moments of each phase, on one directory all the time. What has left the pipes by then must be at
// the server exactly once, in order and without a gap, after the last restart.

// phase is a state of the way from pipe to server in which the agent is to die.
type phase struct {
	name string
	away bool // the server, until something is in the spool if the phase is its return
	back bool // it returns
	bulk bool // the job prints as much as is taken
	// reached: by what the child says, it is in this phase. A kill counts for the phase only if this still
	// holds for the last that the child said.
	reached func(w words) bool
}

// words are what a child has said: the last, and which before.
type words struct {
	last            string
	memory, spooled bool // records are there, by the last stats
	acked           bool // the server has taken something from this process
	spilling        bool // the spool is being written: it has said so, and not the opposite
	sealing         bool
}

func (w words) hear(line string) words {
	w.last = line
	switch line {
	case "spilling", "spilled":
		w.spilling = line == "spilling"
	case "sealing", "sealed":
		w.sealing = line == "sealing"
	default:
		if f := strings.Fields(line); len(f) == 4 && f[0] == "stats" {
			w.memory, w.spooled, w.acked = f[1] == "1", f[2] == "1", f[3] == "1"
		}
	}
	return w
}

var phases = []phase{
	{name: "healthy", reached: func(w words) bool { return w.acked && !w.spooled && !w.spilling }},
	{name: "outage", away: true, reached: func(w words) bool { return w.memory && !w.acked && !w.spilling && !w.sealing }},
	{name: "spilling", away: true, bulk: true, reached: func(w words) bool { return w.spilling && !w.sealing }},
	{name: "draining", away: true, back: true, bulk: true, reached: func(w words) bool { return w.spooled && w.acked }},
	{name: "sealing", away: true, bulk: true, reached: func(w words) bool { return w.sealing }},
}

// matrix is the test's side.
type matrix struct {
	t      *testing.T
	dir    string
	url    string
	server *server
	random *rand.Rand
	away   atomic.Bool
	lossy  atomic.Bool // every third reply is lost after the commit
	served atomic.Int64
	open   []*crashJob  // whose log the server doesn't have as a whole yet
	done   []*serverLog // of the others
	bytes  int
}

// crashJob is one child's work as the test sees it.
type crashJob struct {
	name     string
	consumed [2][]byte // what left its pipes
}

func TestC1C6CrashMatrix(t *testing.T) {
	each := 3 // three quarters of a minute on a busy machine with the race detector
	if soak() {
		each = 40 // 200 in all
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := &matrix{t: t, dir: t.TempDir(), server: newServer(), random: rand.New(rand.NewPCG(seed, 1))}
	web := httptest.NewServer(http.HandlerFunc(m.serve))
	defer web.Close()
	defer http.DefaultClient.CloseIdleConnections()
	m.url = web.URL
	hits, kills := map[string]int{}, 0
	for len(hits) < len(phases) || slices.Min(slices.Collect(maps.Values(hits))) < each {
		// All phases in turn, so that an outage is followed by its drain, and a drain by health.
		for _, p := range phases {
			if hits[p.name] >= each {
				continue
			}
			if kills++; kills > 10*each*len(phases) {
				t.Fatalf("%d kills hit %v: some phase is never reached", kills, hits)
			}
			if p.name == "healthy" {
				m.drain()
			}
			if m.round(p, kills) {
				hits[p.name]++
			}
			m.settle()
		}
	}
	m.drain()
	m.settle()
	for _, j := range m.open {
		t.Errorf("%s: the server doesn't know where its log ends: %+v", j.name, m.server.log(ref(j.name)).next)
	}
	for _, l := range m.done {
		if len(l.records) > 0 {
			t.Errorf("%d records came behind the end of a log", len(l.records))
		}
	}
	for _, b := range m.server.broken {
		t.Errorf("server saw: %s", b)
	}
	t.Logf("%d kills, of which hit %v; %d bytes had left the pipes", kills, hits, m.bytes)
}

func (m *matrix) serve(w http.ResponseWriter, r *http.Request) {
	var in wireShip
	if gob.NewDecoder(r.Body).Decode(&in) != nil {
		return
	}
	n := m.served.Add(1)
	var a wireAnswer
	switch {
	case m.away.Load():
		a.Failed = true
	case in.Ask:
		next, err := m.server.LogNext(r.Context(), in.Ref)
		a.Next, a.Failed = next.Next, err != nil
	default:
		next, err := m.server.ShipLog(r.Context(), in.Ref, in.Body)
		a.Next, a.Failed = next.Next, err != nil
	}
	if m.lossy.Load() && n%3 == 0 {
		panic(http.ErrAbortHandler)
	}
	gob.NewEncoder(w).Encode(a)
}

// round runs one child into a phase and kills it there. False = the phase was over when the kill came.
func (m *matrix) round(p phase, n int) bool {
	t := m.t
	j := &crashJob{name: "round" + strconv.Itoa(n) + p.name}
	m.open = append(m.open, j)
	m.away.Store(p.away)
	m.lossy.Store(m.random.IntN(3) == 0)
	var readers, writers [2]*os.File
	for i := range readers {
		var err error
		if readers[i], writers[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		defer readers[i].Close()
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+m.dir+"\n"+m.url+"\n"+j.name)
	cmd.ExtraFiles = readers[:]
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	written, stop := m.print(p, writers)
	// Half of the seals are those of a stop, which come at any fill; the others are an epoch's that is full.
	stopAt := time.Duration(0)
	if p.name == "sealing" && m.random.IntN(2) == 0 {
		stopAt = time.Duration(20+m.random.IntN(200)) * time.Millisecond
	}
	w := m.hearUntilKilled(p, cmd, in, out, stopAt)
	stop()
	for i, r := range readers {
		rest, err := io.ReadAll(r) // what nobody had read
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(written[i], rest) {
			t.Fatalf("%s: the pipe's rest is not the end of what was written: the test is wrong", j.name)
		}
		j.consumed[i] = written[i][:len(written[i])-len(rest)]
		m.bytes += len(j.consumed[i])
	}
	return p.reached(w)
}

// hearUntilKilled follows the child until it is in phase p, kills it a moment later, and returns all that it has said.
func (m *matrix) hearUntilKilled(p phase, cmd *exec.Cmd, in io.Writer, out io.Reader, stopAt time.Duration) words {
	var w words
	var kill *time.Timer
	moment := time.Duration(m.random.IntN(30_000)) * time.Microsecond
	if p.name == "sealing" || p.name == "spilling" {
		moment /= 10 // they are over soon
	}
	patience := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer patience.Stop()
	if stopAt > 0 {
		ask := time.AfterFunc(stopAt, func() { io.WriteString(in, "\n") })
		defer ask.Stop()
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		w = w.hear(lines.Text())
		if p.back && w.spooled {
			m.away.Store(false)
		}
		if kill == nil && (p.reached(w) || w.last == "stopped") {
			kill = time.AfterFunc(moment, func() { cmd.Process.Kill() })
		}
	}
	if kill == nil {
		m.t.Errorf("%s: the child ended, or did not get there in 20 s: %+v", p.name, w)
		cmd.Process.Kill()
	} else {
		kill.Stop()
	}
	cmd.Wait()
	return w
}

// print is the job: it writes to both pipes until stop, after which nobody touches what it has written.
func (m *matrix) print(p phase, writers [2]*os.File) (written *[2][]byte, stop func()) {
	written = new([2][]byte)
	var wg sync.WaitGroup
	for i, w := range writers {
		own := rand.New(rand.NewPCG(m.random.Uint64(), 2))
		quiet := !p.bulk && own.IntN(3) == 0
		wg.Go(func() {
			defer w.Close()
			for n := 0; ; n++ {
				out := crashOutput(own, n)
				if p.bulk && i == 0 {
					out = bulkOutput(own)
				}
				k, err := w.Write(out)
				written[i] = append(written[i], out[:k]...)
				if err != nil {
					return
				}
				if quiet || p.bulk && i == 1 || p.back || p.away && !p.bulk {
					<-time.After(time.Duration(own.IntN(3000)) * time.Microsecond) // a job that prints now and then
				}
			}
		})
	}
	return written, func() {
		for _, w := range writers {
			w.SetWriteDeadline(time.Now())
		}
		wg.Wait()
	}
}

// drain runs the shipper, in this process, until the server has everything.
func (m *matrix) drain() {
	m.away.Store(false)
	c, err := crashShipper(m.dir, m.url)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	runCtx, stop := context.WithCancel(m.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(runCtx) }()
	if err := c.Flush(ctx); err != nil {
		m.t.Errorf("%v: %+v", err, c.Stats())
	}
	if st := c.Stats(); st.Gaps+st.Dead > 0 {
		m.t.Errorf("records are lost: %+v", st)
	}
	stop()
	<-done
	c.stopSpool()
	c.Close()
}

// settle compares what the server has as a whole with what had left the pipes, and forgets it.
func (m *matrix) settle() {
	m.open = slices.DeleteFunc(m.open, func(j *crashJob) bool {
		m.server.mu.Lock()
		l := m.server.log(ref(j.name))
		whole := l.final >= 0 && l.next >= l.final
		m.server.mu.Unlock()
		if !whole {
			return false
		}
		for i, stream := range []protocol.Stream{protocol.Stdout, protocol.Stderr} {
			want := string(j.consumed[i])
			if got := m.server.text(ref(j.name), stream); got != want {
				at := 0
				for at < min(len(got), len(want)) && got[at] == want[at] {
					at++
				}
				m.t.Errorf("%s %s: server has %d bytes, %d had left the pipe; they differ at %d: %s, want %s",
					j.name, stream, len(got), len(want), at, brief(got[at:]), brief(want[at:]))
			}
		}
		m.server.mu.Lock()
		l.records = nil // compared; where it ends is still asked for
		m.done = append(m.done, l)
		m.server.mu.Unlock()
		return true
	})
}

// crashOutput is the next thing a job prints: usually lines, sometimes pieces of them, long ones, NULs.
func crashOutput(random *rand.Rand, n int) []byte {
	switch random.IntN(12) {
	case 0:
		return []byte(".")
	case 1:
		return make([]byte, 1+random.IntN(40)) // what zeroed memory looks like
	case 2:
		return bytes.Repeat([]byte{byte('a' + n%26)}, random.IntN(20<<10)+1)
	case 3:
		return []byte{0xff, 0xfe, byte(n)}
	}
	var b bytes.Buffer
	for i := range 1 + random.IntN(50) {
		fmt.Fprintf(&b, "n=%d.%d of a job that is going to be killed\n", n, i)
	}
	return b.Bytes()
}

// bulkOutput is 64 KiB that no compression makes smaller, so that epochs fill fast.
func bulkOutput(random *rand.Rand) []byte {
	b := make([]byte, 64<<10)
	for i := 0; i < len(b); i += 8 {
		for k, v := 0, random.Uint64(); k < 8; k++ {
			b[i+k] = byte(v >> (8 * k))
		}
	}
	for i := random.IntN(4000); i < len(b); i += 1 + random.IntN(8000) {
		b[i] = '\n'
	}
	return b
}
