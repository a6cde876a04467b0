package exec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	osexec "os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The packages' unit hides from the agent what it may not trace (ProtectProc=invisible), and the agent keeps its own memory from being
// traced (PR_SET_DUMPABLE), which its children inherit until they execute something else: a job's supervisor can't be seen in its
// first moments, and a process that keeps its memory to itself as the agent does can't ever.
func TestWhatProcHidesIsWaitedForAndSignalled(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount /proc as systemd does")
	}
	mount, _, err := findCgroup2()
	if err != nil {
		t.Skipf("no cgroup v2: %v", err)
	}
	base := filepath.Join(mount, "agentd-hidden-"+strconv.Itoa(os.Getpid()))
	work := newRunner(t, Config{Cgroup: CgroupOff}).cfg.WorkRoot
	if err := os.MkdirAll(filepath.Join(base, leaf), 0o755); err != nil {
		t.Skipf("no cgroup to be had: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(killCgroup(base), removeCgroup(base, time.Now().Add(10*time.Second))); err != nil {
			t.Errorf("cgroup: %v", err)
		}
	})
	for _, path := range []string{work, base, base + "/cgroup.procs", base + "/cgroup.subtree_control", base + "/" + leaf, base + "/" + leaf + "/cgroup.procs"} {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helper+"=unit", "WORK="+work, "BASE="+base)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const want = "hidden\nfound\nshy\nasked to stop\ncancelled 3\n"
	if string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

const nobody = 65534

// helperUnit is an agent as the packages' unit runs it.
func helperUnit() {
	check := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	base := os.Getenv("BASE")
	check(enterCgroup(filepath.Join(base, leaf)))
	check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	check(unix.Mount("proc", "/proc", "proc", 0, "hidepid=invisible"))
	check(errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)))
	check(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))

	child := osexec.Command("/proc/self/exe")
	child.Env = []string{helper + "=shy"}
	in, err := child.StdinPipe()
	check(err)
	out, err := child.StdoutPipe()
	check(err)
	check(child.Start())
	said := bufio.NewReader(out)
	_, err = said.ReadString('\n')
	check(err)
	if _, err := readStat(child.Process.Pid); errors.Is(err, fs.ErrNotExist) {
		fmt.Println("hidden")
	}
	stat := make(chan error)
	go func() {
		_, err := statOfChild(child.Process.Pid)
		stat <- err
	}()
	_, err = in.Write([]byte("show yourself\n"))
	check(err)
	check(<-stat)
	fmt.Println("found")
	check(in.Close())
	check(child.Wait())

	r, err := New(Config{WorkRoot: os.Getenv("WORK"), Cgroup: base})
	check(err)
	ctx, cancel := context.WithCancelCause(context.Background())
	job := told{started: make(chan struct{})}
	done := make(chan Result)
	go func() {
		done <- r.Run(ctx, Spec{
			JobID: "job_1", Attempt: 1, Grace: time.Minute, Command: []string{"/proc/self/exe"}, Env: []string{helper + "=shy"}, Stdout: &job,
		})
	}()
	<-job.started
	cancel(errors.New("enough"))
	res := <-done
	fmt.Print(job.text)
	fmt.Println(res.Outcome, res.ExitCode)
	os.Exit(0)
}

// told takes what a job prints, and tells when it has begun to.
type told struct {
	started chan struct{}
	text    string
}

func (o *told) ReadFrom(r io.Reader) (n int64, err error) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return n, nil //nolint:nilerr // the end
		}
		if n == 0 {
			close(o.started)
		}
		n += int64(len(line))
		o.text += line
	}
}

// helperShy hides. Told anything, it shows itself and ends with its input; else it says when it is asked to stop.
func helperShy() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	hide := func(on bool) {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, map[bool]uintptr{true: 0, false: 1}[on], 0, 0, 0); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	hide(true)
	fmt.Println("shy")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err == nil {
		hide(false)
		_, _ = in.ReadString('\n')
		os.Exit(0)
	}
	<-asked
	fmt.Println("asked to stop")
	os.Exit(3)
}
