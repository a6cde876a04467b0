package main

import (
	"errors"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/controlplane-mock/adminclient"
)

// The agent dies in each way while a job runs, somebody who watched over it notes its end, as systemd does, and the next start says
// what it was.
func TestLostJobsSayWhatEndedTheAgent(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\n").linked(t)
	kill := func(sig syscall.Signal) func(*testing.T, *child) {
		return func(t *testing.T, c *child) {
			if err := c.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name           string
		die            func(*testing.T, *child)
		result, status string // what systemd says; "" = nobody noted the end
		want           string
	}{
		{"nobody knows", kill(syscall.SIGKILL), "", "", "the agent died (killed, out of memory, or crashed)"},
		{"killed", kill(syscall.SIGKILL), "signal", "KILL", "the agent was killed (SIGKILL)"},
		{"out of memory", starve, "signal", "KILL", "the agent was killed by the kernel, out of memory (OOM)"},
		{"killed after that", kill(syscall.SIGKILL), "signal", "KILL", "the agent was killed (SIGKILL)"},
		{"watchdog", kill(syscall.SIGABRT), "watchdog", "ABRT", "the agent made no progress and was ended by the watchdog"},
		{"crashed", kill(syscall.SIGQUIT), "exit-code", "2", "the agent crashed (exit code 2)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			agent := start(t, "", "run", "--config", h.config)
			id := h.submit(t, adminclient.Submission{MaxAttempts: 1}, "echo n=1; sleep 300")
			h.job(t, id, func(j adminclient.Job) bool { return j.Last() != nil && j.Last().LogNext == 1 })
			c.die(t, agent)
			<-agent.done
			if c.result != "" {
				t.Setenv("SERVICE_RESULT", c.result)
				t.Setenv("EXIT_STATUS", c.status)
				h.does(t, 0, "", "ended")
				// A start that fails, a config being wrong, is not what ended the job.
				t.Setenv("SERVICE_RESULT", "exit-code")
				t.Setenv("EXIT_STATUS", "78")
				h.does(t, exitConfig, "", "run", "--server", "nonsense")
				h.does(t, 0, "", "ended", "--server", "nonsense")
			}
			again := start(t, "", "run", "--config", h.config)
			job := h.job(t, id, func(j adminclient.Job) bool { return j.Settled() && j.Last().LogsComplete })
			if at, want := job.Last(), c.want+" while the job ran"; at.State != "lost" || at.Error != want {
				t.Errorf("attempt is %s: %q, want lost: %q", at.State, at.Error, want)
			}
			_ = again.cmd.Process.Signal(syscall.SIGTERM)
			if code := again.code(t); code != 0 {
				t.Errorf("exit code %d after SIGTERM", code)
			}
		})
	}
}

func TestEndedIsForSystemd(t *testing.T) {
	h := newHost(t, "")
	h.does(t, exitUsage, "", "ended")
	t.Setenv("SERVICE_RESULT", "success")
	h.does(t, 0, "", "ended") // where no agent ever ran there is nothing to note
}

// starve lets the kernel's OOM killer end the agent, and nothing but the agent: it alone is put where there is no memory.
func starve(t *testing.T, c *child) {
	t.Helper()
	group := "/sys/fs/cgroup/memory/agentd-starve-" + strconv.Itoa(os.Getpid())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no v1 memory hierarchy to try it with: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	pid := strconv.Itoa(c.cmd.Process.Pid)
	for _, f := range [][2]string{{"memory.limit_in_bytes", "0"}, {"cgroup.procs", pid}} {
		if err := os.WriteFile(filepath.Join(group, f[0]), []byte(f[1]), 0); err != nil {
			t.Skipf("no memory limit to be had: %v", err)
		}
	}
	for range 200 { // each makes it touch new memory
		if errors.Is(syscall.Kill(c.cmd.Process.Pid, 0), syscall.ESRCH) {
			return
		}
		ask := osexec.Command(os.Args[0], append([]string{"status", "--json"}, c.cmd.Args[2:]...)...)
		ask.Env = append(os.Environ(), asAgentd+"=1")
		_ = ask.Run()
		select {
		case <-c.done:
			if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
				t.Fatalf("the agent ended by itself: %v\n%s", c.cmd.ProcessState, strings.TrimSpace(c.err.String()))
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Fatal("the agent lives without memory")
}
