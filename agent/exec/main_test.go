package exec

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentd/internal/testmain"
)

// helper names, in the environment, what a re-executed test binary is to be.
const helper = "EXEC_TEST_HELPER"

func TestMain(m *testing.M) {
	Main()
	switch os.Getenv(helper) {
	case "agent":
		helperAgent()
	case "eat":
		helperEat()
	case "tracer":
		helperTracer()
	case "flood":
		helperFlood()
	case "unit":
		helperUnit()
	case "shy":
		helperShy()
	}
	testmain.Run(m)
}

// modes are the two ways to hold a tree together; every test of processes runs in both.
var modes = []string{CgroupAuto, CgroupOff}

func inEachMode(t *testing.T, f func(t *testing.T, r *Runner)) {
	for _, mode := range modes {
		t.Run("cgroup "+mode, func(t *testing.T) {
			t.Parallel() // mostly waiting
			f(t, newRunner(t, Config{Cgroup: mode}))
		})
	}
}

func newRunner(t *testing.T, cfg Config) *Runner {
	t.Helper()
	if cfg.WorkRoot == "" {
		dir, err := os.MkdirTemp("", "work") //nolint:usetesting // a job that runs as somebody else must be able to pass, and T.TempDir is closed to others
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		cfg.WorkRoot = dir
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if cfg.Cgroup == CgroupAuto && r.Support().Cgroup == "" {
		t.Skipf("no cgroup v2 to be had here: %s", r.Support().Why)
	}
	return r
}

// sink collects one stream.
type sink struct {
	mu   sync.Mutex
	data bytes.Buffer
	last []byte
	size int64
	more chan struct{} // closed at the next write
}

func newSink() *sink { return &sink{more: make(chan struct{})} }

func (s *sink) ReadFrom(r io.Reader) (int64, error) {
	piece := make([]byte, 64<<10)
	for {
		n, err := r.Read(piece)
		s.mu.Lock()
		s.size += int64(n)
		if s.data.Len() < 1<<20 {
			s.data.Write(piece[:n])
		}
		s.last = append(s.last, piece[:n]...)
		s.last = s.last[max(0, len(s.last)-256):]
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return s.size, err
		}
	}
}

func (s *sink) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.String()
}

// waitFor returns once the stream holds what.
func (s *sink) waitFor(t *testing.T, what string) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		s.mu.Lock()
		found, more := strings.Contains(s.data.String(), what), s.more
		s.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-limit:
			t.Fatalf("output after 10s: %q, want it to hold %q", s.text(), what)
		}
	}
}

// trial is one attempt under way.
type trial struct {
	t        *testing.T
	out, err *sink
	cancel   context.CancelCauseFunc
	proc     Proc
	result   chan Result
	mu       sync.Mutex
	remarks  []string
}

func begin(t *testing.T, r *Runner, spec Spec) *trial {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	tr := &trial{t: t, out: newSink(), err: newSink(), cancel: cancel, result: make(chan Result, 1)}
	if spec.JobID == "" {
		spec.JobID, spec.Attempt, spec.Type = "job_1", 1, "test"
	}
	if spec.Stdout == nil {
		spec.Stdout = tr.out
	}
	spec.Stderr = tr.err
	if spec.Started == nil {
		spec.Started = func(p Proc) error { tr.proc = p; return nil }
	}
	spec.Remark = func(text string) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.remarks = append(tr.remarks, text)
	}
	go func() { tr.result <- r.Run(ctx, spec) }()
	return tr
}

func (tr *trial) wait() Result {
	tr.t.Helper()
	select {
	case res := <-tr.result:
		tr.cancel(nil)
		return res
	case <-time.After(20 * time.Second):
		text := tr.out.text()
		tr.t.Fatalf("the attempt has not ended after 20s; output so far: …%q", text[max(0, len(text)-512):])
		return Result{}
	}
}

func (tr *trial) remarked(what string) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.ContainsFunc(tr.remarks, func(r string) bool { return strings.Contains(r, what) })
}

// run runs a shell script as an attempt, to its end.
func run(t *testing.T, r *Runner, script string, spec Spec) (Result, *trial) {
	t.Helper()
	spec.Command = []string{"sh", "-c", script}
	tr := begin(t, r, spec)
	return tr.wait(), tr
}

// wantNobody fails if a process of the attempt lives: by the environment that all of them inherit, which is
// not how the runner looks for them while its shim lives, and by their cgroup.
func wantNobody(t *testing.T, p Proc) {
	t.Helper()
	if left := carriers("AGENTD_WORK_DIR=" + p.WorkDir); len(left) > 0 {
		t.Errorf("alive after the end: %s", describe(left))
		for _, l := range left {
			syscall.Kill(l.pid, syscall.SIGKILL)
		}
	}
	if p.Cgroup != "" && exists(p.Cgroup, "cgroup.procs") {
		t.Errorf("cgroup %s is still there", p.Cgroup)
	}
}

func wantNothingLeft(t *testing.T, r *Runner) {
	t.Helper()
	entries, err := os.ReadDir(r.cfg.WorkRoot)
	if err != nil || len(entries) > 0 {
		t.Errorf("work root holds %v (%v), want nothing", entries, err)
	}
	if n := r.Remains(); n != 0 {
		t.Errorf("%d attempts remain, want 0", n)
	}
}

// helperAgent is an agent that runs one attempt; the test kills it.
func helperAgent() {
	if os.Getenv("NOCLONE3") != "" {
		forbidClone3()
	}
	r, err := New(Config{WorkRoot: os.Getenv("WORK"), Cgroup: os.Getenv("CGROUP"), Environ: os.Environ()})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	res := r.Run(context.Background(), Spec{
		JobID: "job_1", Attempt: 1, Command: []string{"sh", "-c", os.Getenv("SCRIPT")},
		Env: []string{"PIDS=" + os.Getenv("PIDS"), helper + "=" + os.Getenv("JOB_HELPER")},
		Started: func(p Proc) error {
			if os.Getenv("DIE") == "started" {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return json.NewEncoder(os.Stdout).Encode(p)
		},
		Stdout: passOn{}, Stderr: passOn{},
	})
	_ = json.NewEncoder(os.Stdout).Encode(res) //nolint:musttag // read back by a test
	os.Exit(0)
}

// forbidClone3 makes clone3 answer ENOSYS, here and in every process to come.
func forbidClone3() {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE3, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		fmt.Println(errno)
		os.Exit(1)
	}
}

type passOn struct{}

func (passOn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(io.Discard, r) }

// startAgent starts helperAgent and returns once it has noted its attempt.
func startAgent(t *testing.T, work, mode, script string, env ...string) (*osexec.Cmd, Proc, *json.Decoder) {
	t.Helper()
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), helper+"=agent", "WORK="+work, "CGROUP="+mode, "SCRIPT="+script), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var p Proc
	dec := json.NewDecoder(out)
	if err := dec.Decode(&p); err != nil {
		t.Fatal(err)
	}
	return cmd, p, dec
}

// tree starts seven processes in every way that is known to escape a process group. Each writes its pid down.
const tree = `
sleeper='echo $$ >>"$PIDS"; exec sleep 600'
sh -c "$sleeper" &
(sh -c "$sleeper" &)
setsid sh -c "$sleeper" &
setsid sh -c "(sh -c '$sleeper' &) ; exit 0" &
setsid sh -c "echo \$\$ >>$PIDS; setsid sh -c 'echo \$\$ >>$PIDS; setsid sh -c \"echo \\\$\\\$ >>$PIDS; exec sleep 600\" & wait' & wait" &
wait
`

// awaitLines returns the numbers in file once it has n lines.
func awaitLines(t *testing.T, file string, n int) []int {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		data, _ := os.ReadFile(file)
		if lines := strings.Fields(string(data)); len(lines) >= n {
			var pids []int
			for _, l := range lines {
				pid, err := strconv.Atoi(l)
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
			return pids
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s holds %q after 10s, want %d lines", filepath.Base(file), data, n)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func wantDead(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if s, err := readStat(pid); err == nil && !s.dead() {
			t.Errorf("process %d is alive (state %c)", pid, s.state)
		}
	}
}
