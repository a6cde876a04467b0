package exec

import (
	"bufio"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentd/agent/protocol"
)

// A seccomp filter that answers ENOSYS to clone3 (systemd's RestrictNamespaces=) costs no job its cgroup.
func TestCgroupWithoutClone3(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupAuto})
	file := filepath.Join(t.TempDir(), "cgroup")
	cmd, p, dec := startAgent(t, r.cfg.WorkRoot, CgroupAuto, `cat /proc/self/cgroup >"$PIDS"; sh -c 'cat /proc/$PPID/cgroup' >/dev/null`, "PIDS="+file, "NOCLONE3=1")
	var res Result
	//nolint:musttag // written by this test
	if err := dec.Decode(&res); err != nil || res.Outcome != protocol.Succeeded {
		t.Errorf("got %+v, %v", res, err)
	}
	cmd.Wait()
	if data, _ := os.ReadFile(file); p.Cgroup == "" || !strings.Contains(string(data), "/"+filepath.Base(p.Cgroup)+"\n") {
		t.Errorf("the job was in %q, want %s", data, p.Cgroup)
	}
	wantNobody(t, p)
}

// P6
func TestProcessThatCannotBeKilledIsReportedAndTheSlotIsFree(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		r.cfg.KillWait = time.Second
		tr := begin(t, r, Spec{Command: []string{"sh", "-c", "echo $$; while :; do sleep 0.05; done"}})
		tr.out.waitFor(t, "\n")
		pid := strings.TrimSpace(tr.out.text())
		tracer := osexec.Command(os.Args[0])
		tracer.Env = append(os.Environ(), helper+"=tracer", "PID="+pid)
		out, _ := tracer.StdoutPipe()
		if err := tracer.Start(); err != nil {
			t.Fatal(err)
		}
		defer tracer.Wait()
		defer tracer.Process.Kill()
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "tracing\n" {
			t.Fatalf("tracer said %q", line)
		}
		start := time.Now()
		tr.cancel(errCancelled)
		res := tr.wait()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the slot was held for %v", took)
		}
		want := fmt.Sprintf("traced by %d", tracer.Process.Pid)
		if res.Outcome != protocol.Cancelled || !strings.Contains(res.Error, want) {
			t.Errorf("got %+v, want an error with %q", res, want)
		}
		t.Logf("said: %s", res.Error)
		if res2, _ := run(t, r, "exit 0", Spec{}); res2.Outcome != protocol.Succeeded {
			t.Errorf("the next attempt: %+v", res2)
		}
		tracer.Process.Kill()
		tracer.Wait()
		if err := retry(time.Now().Add(5*time.Second), func() error {
			r.retryRemains()
			if n := r.Remains(); n > 0 {
				return fmt.Errorf("%d remain", n)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		wantNobody(t, tr.proc)
		wantNothingLeft(t, r)
	})
}

// helperTracer holds a process so that even SIGKILL doesn't end it: it stops on its way out, and nobody lets it go.
func helperTracer() {
	runtime.LockOSThread()
	pid, _ := strconv.Atoi(os.Getenv("PID"))
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
	if errno != 0 {
		fmt.Println(errno)
		os.Exit(1)
	}
	fmt.Println("tracing")
	select {}
}
