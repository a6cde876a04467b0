package shipper

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/spool"
)

// The crash matrix. A child, which is this test binary once more, reads real pipes whose other ends
// the test holds, and ships to the test. It is killed at random moments. What has left the pipes
// by then must be at the server exactly once after the last restart.

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

// crashChild is the child's whole life: it ends by SIGKILL.
func crashChild(dir, url, job string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
	s, stopSpool, err := crashShipper(dir, url)
	if err != nil {
		fail(err)
	}
	defer stopSpool()
	l, err := s.Open(ref(job))
	if err != nil {
		fail(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(context.Background()) })
	wg.Go(func() { l.Stream(protocol.Stdout).ReadFrom(os.NewFile(3, "out")) })
	wg.Go(func() { l.Stream(protocol.Stderr).ReadFrom(os.NewFile(4, "err")) })
	fmt.Println("ready")
	wg.Wait()
}

func crashShipper(dir, url string) (*Shipper, func(), error) {
	cfg := Config{QueueFile: filepath.Join(dir, "queue"), Memory: 4 << 20, MaxLine: 8 << 10, Sender: remote{url}}
	stop := func() {}
	if sp, err := openSpool(filepath.Join(dir, "spool")); err != nil {
		return nil, nil, err
	} else if sp != nil {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { sp.Run(ctx) })
		stop = func() { cancel(); wg.Wait() }
		cfg.Spool, _ = any(sp).(Spool)
	}
	s, err := New(cfg)
	if err != nil {
		return nil, nil, err
	}
	s.SetServer(8<<20, []string{"zstd", "gzip", "snappy"})
	return s, stop, nil
}

func openSpool(dir string) (*spool.Spool, error) {
	if os.Getenv("AGENTD_TEST_NO_SPOOL") != "" {
		return nil, nil
	}
	return spool.Open(spool.Config{Dir: dir, MaxSize: 256 << 20, EpochSize: 8 << 20})
}

// job is one child's work as the test sees it.
type job struct {
	name     string
	consumed [2][]byte // what left its pipes
}

func TestC1C6CrashMatrix(t *testing.T) {
	rounds := 50
	if soak() {
		rounds = 200
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	v := newServer()
	var mu sync.Mutex
	mode := 0 // 0 healthy, 1 away, 2 every third reply lost
	count := 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m wireShip
		if gob.NewDecoder(r.Body).Decode(&m) != nil {
			return
		}
		mu.Lock()
		how := mode
		count++
		n := count
		mu.Unlock()
		var a wireAnswer
		switch {
		case how == 1:
			a.Failed = true
		case m.Ask:
			next, _ := v.LogNext(r.Context(), m.Ref)
			a.Next = next.Next
		default:
			next, err := v.ShipLog(r.Context(), m.Ref, m.Body)
			a.Next, a.Failed = next.Next, err != nil
		}
		if how == 2 && n%3 == 0 {
			panic(http.ErrAbortHandler)
		}
		gob.NewEncoder(w).Encode(a)
	}))
	defer web.Close()

	var jobs []*job
	for i := range rounds {
		mu.Lock()
		mode = random.IntN(3)
		mu.Unlock()
		j := &job{name: "round" + strconv.Itoa(i)}
		jobs = append(jobs, j)
		crashRound(t, dir, web.URL, j, random)
	}
	mu.Lock()
	mode = 0
	mu.Unlock()
	s, stopSpool, err := crashShipper(dir, web.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	runCtx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(runCtx) }()
	if err := s.Flush(ctx); err != nil {
		t.Errorf("%v: %+v", err, s.Stats())
	}
	stop()
	<-done
	stopSpool()
	s.Close()
	http.DefaultClient.CloseIdleConnections()
	total := 0
	for _, j := range jobs {
		for i, stream := range []protocol.Stream{protocol.Stdout, protocol.Stderr} {
			want := string(j.consumed[i])
			total += len(want)
			if got := v.text(ref(j.name), stream); got != want {
				at := 0
				for at < min(len(got), len(want)) && got[at] == want[at] {
					at++
				}
				t.Errorf("%s %s: server has %d bytes, %d had left the pipe; they differ at %d: %s, want %s",
					j.name, stream, len(got), len(want), at, brief(got[at:]), brief(want[at:]))
			}
		}
	}
	for _, b := range v.broken {
		t.Errorf("server saw: %s", b)
	}
	t.Logf("%d kills, %d bytes had left the pipes", rounds, total)
}

func crashRound(t *testing.T, dir, url string, j *job, random *rand.Rand) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var readers, writers [2]*os.File
	for i := range readers {
		if readers[i], writers[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		defer readers[i].Close()
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+dir+"\n"+url+"\n"+j.name)
	cmd.ExtraFiles = readers[:]
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatalf("%s: the child did not start: %v", j.name, err)
	}
	// The job: it prints until the pipe's other end is gone.
	var written [2][]byte
	var wg sync.WaitGroup
	for i, w := range writers {
		own := rand.New(rand.NewPCG(random.Uint64(), 2))
		quiet := own.IntN(3) == 0
		wg.Go(func() {
			defer w.Close()
			for n := 0; ; n++ {
				p := crashOutput(own, n)
				k, err := w.Write(p)
				written[i] = append(written[i], p[:k]...)
				if err != nil {
					return
				}
				if quiet {
					<-time.After(time.Duration(own.IntN(3)) * time.Millisecond) // a job that prints now and then
				}
			}
		})
	}
	timer := time.NewTimer(time.Duration(10+random.IntN(160)) * time.Millisecond)
	<-timer.C
	cmd.Process.Kill()
	cmd.Wait()
	// The writers stop, and what is still in the pipes is drained by us.
	var rest [2][]byte
	for _, w := range writers {
		w.SetWriteDeadline(time.Now())
	}
	wg.Wait()
	for i, r := range readers {
		var b bytes.Buffer
		if _, err := b.ReadFrom(r); err != nil {
			t.Fatal(err)
		}
		rest[i] = b.Bytes()
		j.consumed[i] = written[i][:len(written[i])-len(rest[i])]
		if !bytes.HasSuffix(written[i], rest[i]) {
			t.Fatalf("%s: the pipe's rest is not the end of what was written: the test is wrong", j.name)
		}
	}
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
