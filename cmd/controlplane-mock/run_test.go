package main

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// jobOf waits until run has said which job it submitted.
func jobOf(t *testing.T, stderr *watched) string {
	t.Helper()
	stderr.waitFor(t, " submitted\n")
	before, _, _ := strings.Cut(stderr.String(), " submitted")
	return before[strings.LastIndex(before, " ")+1:]
}

func TestRunStreamsAndExitsAsTheJobDid(t *testing.T) {
	s := serving(t)
	a := link(t, s)
	for name, tc := range map[string]struct {
		end    protocol.Completion
		code   int
		stderr string
	}{
		"success":     {protocol.Completion{Outcome: protocol.Succeeded}, 0, ""},
		"exit code":   {protocol.Completion{Outcome: protocol.Failed, ExitCode: 42}, 42, "failed"},
		"signal":      {protocol.Completion{Outcome: protocol.Failed, Signal: "SIGKILL", Error: "out of memory"}, 128 + 9, "out of memory"},
		"no start":    {protocol.Completion{Outcome: protocol.Failed, Error: "no such command"}, 1, "no such command"},
		"timeout":     {protocol.Completion{Outcome: protocol.TimedOut, Signal: "SIGTERM"}, 128 + 15, "timedOut"},
		"odd code":    {protocol.Completion{Outcome: protocol.Failed, ExitCode: 4711}, 1, "failed"},
		"kept at 255": {protocol.Completion{Outcome: protocol.Failed, ExitCode: 255}, 255, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, s.args("run", "--env", "A=b", "--timeout", "1m", "--", "sh", "-c", `echo "it's" $HOME`)...)
			run := a.take()
			var payload struct {
				Script string `json:"script"`
			}
			want := `sh -c 'echo "it'\''s" $HOME'`
			if err := json.Unmarshal(run.Payload, &payload); err != nil || payload.Script != want {
				t.Errorf("script: got %q (%v), want %q", payload.Script, err, want)
			}
			if run.Env["A"] != "b" || run.Timeout != 60_000 {
				t.Errorf("env and timeout: got %v, %d, want A=b, 60000", run.Env, run.Timeout)
			}
			run.ship(0, out("to out"), errLine("to err"), protocol.Record{Stream: protocol.Remark, Text: "a remark"}, protocol.Record{Gap: 2, Reason: "spoolFull"})
			p.stdout.waitFor(t, "to out\n") // as it comes, not at the end
			tc.end.LogRecords = 6
			run.complete(tc.end)
			run.ship(5, protocol.Record{Stream: protocol.Stdout, Text: "the last", EOF: true})
			if code := p.wait(t); code != tc.code {
				t.Errorf("exit code: got %d, want %d\n%s", code, tc.code, p.stderr)
			}
			if got, want := p.stdout.String(), "to out\nthe last"; got != want {
				t.Errorf("stdout: got %q, want %q", got, want)
			}
			for _, want := range []string{"to err\n[agent] a remark\n[gap: 2 records lost: spoolFull]\n", tc.stderr} {
				if !strings.Contains(p.stderr.String(), want) {
					t.Errorf("stderr: got\n%s\nwant %q in it", p.stderr, want)
				}
			}
		})
	}
}

func TestRunSaysWhyItWaits(t *testing.T) {
	s := serving(t)
	p := start(t, s.args("run", "--label", "gpu=1", "true")...)
	p.stderr.waitFor(t, "waiting: no agent online")
	link(t, s)
	p.stderr.waitFor(t, "waiting: 1 agent online, none with label gpu=1")
	s.must("cancel", jobOf(t, p.stderr))
	if code := p.wait(t); code != 1 {
		t.Errorf("cancelled while waiting: got %d, want 1", code)
	}
	if n := strings.Count(p.stderr.String(), "waiting: no agent online"); n != 1 {
		t.Errorf("said %d times why it waits, want once a change:\n%s", n, p.stderr)
	}
}

func TestRunGoesOnWithTheNextAttempt(t *testing.T) {
	s := serving(t)
	a := link(t, s)
	p := start(t, s.args("run", "--retry-on", "failed", "true")...)
	first := a.take()
	first.ship(0, out("first"))
	first.complete(protocol.Completion{Outcome: protocol.Failed, ExitCode: 9, LogRecords: 1})
	second := a.take()
	second.complete(protocol.Completion{Outcome: protocol.Succeeded})
	if code := p.wait(t); code != 0 || p.stdout.String() != "first\n" {
		t.Errorf("got %d, %q, want 0, first", code, p.stdout)
	}
	p.stderr.waitFor(t, "attempt 2 on "+a.id)
}

func TestRunOverARestart(t *testing.T) {
	s := serving(t)
	a := link(t, s)
	p := start(t, s.args("run", "true")...)
	run := a.take()
	run.ship(0, out("before"))
	p.stdout.waitFor(t, "before\n")
	s.kill()
	p.stderr.waitFor(t, "the server went away")
	s.start()
	run.ship(1, out("after"))
	p.stdout.waitFor(t, "after\n")
	p.stderr.waitFor(t, "the server is there again")
	run.complete(protocol.Completion{Outcome: protocol.Failed, ExitCode: 3, LogRecords: 2})
	if code := p.wait(t); code != 3 || p.stdout.String() != "before\nafter\n" {
		t.Errorf("got %d, %q, want 3, before and after once each", code, p.stdout)
	}
}

// Without a terminal nobody can be asked: the job is cancelled, and its end waited for.
func TestRunInterruptedWithoutATerminal(t *testing.T) {
	s := serving(t)
	a := link(t, s)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			p := start(t, s.args("run", "true")...)
			run := a.take()
			run.ship(0, out("going"))
			p.stdout.waitFor(t, "going")
			p.signal(t, sig)
			if got, want := run.cancelled(), "interrupted ("+unix.SignalName(sig)+")"; got != want {
				t.Errorf("reason: got %q, want %q", got, want)
			}
			run.ship(1, out("cleaning up"))
			run.complete(protocol.Completion{Outcome: protocol.Cancelled, Signal: "SIGTERM", LogRecords: 2})
			if code := p.wait(t); code != 128+15 || p.stdout.String() != "going\ncleaning up\n" {
				t.Errorf("got %d, %q, want 143 and the whole log", code, p.stdout)
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		p := start(t, s.args("run", "true")...)
		run := a.take()
		p.signal(t, syscall.SIGTERM)
		p.stderr.waitFor(t, "waiting for its end")
		p.signal(t, syscall.SIGTERM)
		if code := p.wait(t); code != exitLater {
			t.Errorf("got %d, want %d", code, exitLater)
		}
		run.complete(protocol.Completion{Outcome: protocol.Cancelled})
	})
	t.Run("detach", func(t *testing.T) {
		p := start(t, s.args("run", "--on-interrupt", "detach", "true")...)
		run := a.take()
		p.stderr.waitFor(t, "submitted")
		p.signal(t, syscall.SIGINT)
		if code := p.wait(t); code != exitLater {
			t.Errorf("got %d, want %d", code, exitLater)
		}
		if hb := run.beat(0); hb.Cancel != nil {
			t.Errorf("the job was cancelled: %+v", hb.Cancel)
		}
		run.complete(protocol.Completion{Outcome: protocol.Succeeded})
	})
}

// console is a pseudo-terminal with the command on it, as its session's leader.
type console struct {
	*process
	master *os.File
	screen *watched
}

func onTerminal(t *testing.T, args ...string) *console {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var slave *os.File
	raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err != nil {
			return
		}
		var n uintptr
		// TIOCGPTPEER opens the other side without its name, so that no /dev/pts has to be mounted where we are.
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
		if errno != 0 {
			err = errno
			return
		}
		slave = os.NewFile(n, "terminal")
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &console{master: master, screen: newWatched(), process: &process{cmd: command(t.Context(), args...), stdout: newWatched(), stderr: newWatched(), done: make(chan struct{})}}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			c.screen.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		master.Close()
		<-read
	})
	c.launch(t)
	slave.Close()
	return c
}

func (c *console) typeIn(t *testing.T, keys string) {
	t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

const (
	ctrlC    = "\x03"
	question = "[d]etach and let it go on, [c]ancel it, or [w]atch on?"
)

func TestCtrlCOnATerminalAsks(t *testing.T) {
	s := serving(t)
	a := link(t, s)
	begin := func(t *testing.T) (*console, *attempt) {
		c := onTerminal(t, s.args("run", "true")...)
		run := a.take()
		run.ship(0, out("going"))
		c.screen.waitFor(t, "going\r\n")
		c.typeIn(t, ctrlC)
		c.screen.waitFor(t, question)
		return c, run
	}
	t.Run("cancel", func(t *testing.T) {
		c, run := begin(t)
		c.typeIn(t, "c\n")
		if got, want := run.cancelled(), "interrupted (SIGINT)"; got != want {
			t.Errorf("reason: got %q, want %q", got, want)
		}
		run.complete(protocol.Completion{Outcome: protocol.Cancelled, Signal: "SIGTERM", LogRecords: 1})
		if code := c.wait(t); code != 128+15 {
			t.Errorf("got %d, want 143\n%s", code, c.screen)
		}
	})
	t.Run("detach", func(t *testing.T) {
		c, run := begin(t)
		c.typeIn(t, "d\n")
		if code := c.wait(t); code != exitLater {
			t.Errorf("got %d, want %d\n%s", code, exitLater, c.screen)
		}
		if hb := run.beat(0); hb.Cancel != nil {
			t.Errorf("the job was cancelled: %+v", hb.Cancel)
		}
		run.complete(protocol.Completion{Outcome: protocol.Succeeded, LogRecords: 1})
	})
	t.Run("Ctrl-C again detaches", func(t *testing.T) {
		c, run := begin(t)
		c.typeIn(t, ctrlC)
		if code := c.wait(t); code != exitLater {
			t.Errorf("got %d, want %d\n%s", code, exitLater, c.screen)
		}
		if hb := run.beat(0); hb.Cancel != nil {
			t.Errorf("the job was cancelled: %+v", hb.Cancel)
		}
		run.complete(protocol.Completion{Outcome: protocol.Succeeded, LogRecords: 1})
	})
	t.Run("watch, then nonsense, then cancel", func(t *testing.T) {
		c, run := begin(t)
		c.typeIn(t, "w\n")
		run.ship(1, out("more output"))
		c.screen.waitFor(t, "more output")
		c.typeIn(t, ctrlC)
		c.screen.waitForTimes(t, question, 2)
		c.typeIn(t, "nonsense\n")
		c.screen.waitForTimes(t, question, 3)
		c.typeIn(t, "can\n")
		run.cancelled()
		run.complete(protocol.Completion{Outcome: protocol.Cancelled, LogRecords: 2})
		if code := c.wait(t); code != 1 {
			t.Errorf("cancelled without a code: got %d, want 1\n%s", code, c.screen)
		}
	})
	t.Run("the job is over, its log isn't", func(t *testing.T) {
		c := onTerminal(t, s.args("run", "true")...)
		run := a.take()
		run.ship(0, out("going"))
		c.screen.waitFor(t, "going\r\n")
		run.complete(protocol.Completion{Outcome: protocol.Failed, ExitCode: 5, LogRecords: 100})
		c.typeIn(t, ctrlC)
		if code := c.wait(t); code != 5 {
			t.Errorf("got %d, want 5\n%s", code, c.screen)
		}
	})
}

// Nothing moves and nothing is coloured, on a terminal and elsewhere.
func TestNoEscapesInOutput(t *testing.T) {
	s := serving(t)
	s.must("submit", "--type", "x", "--payload", `"\u001b[31mred"`)
	c := onTerminal(t, s.args("jobs")...)
	if code := c.wait(t); code != 0 {
		t.Fatalf("got %d, want 0", code)
	}
	c.screen.waitFor(t, "pending")
	r := s.cli("submit", "--type", "bad\x1btype")
	for where, text := range map[string]string{"screen": c.screen.String(), "stdout": r.stdout, "stderr": r.stderr} {
		if strings.Contains(text, "\x1b") {
			t.Errorf("%s holds an escape: %q", where, text)
		}
	}
}

func TestJobExit(t *testing.T) {
	for want, j := range map[int]adminclient.Job{
		0:       {Status: "succeeded", Attempts: []adminclient.Attempt{{}}},
		1:       {Status: "cancelled"},
		7:       {Status: "succeeded", Attempts: []adminclient.Attempt{{ExitCode: 7}}},
		128 + 6: {Status: "failed", Attempts: []adminclient.Attempt{{ExitCode: 7, Signal: "SIGABRT"}}},
		8:       {Status: "failed", Attempts: []adminclient.Attempt{{ExitCode: 9}, {ExitCode: 8, Signal: "SIGNONSENSE"}}},
	} {
		if got := jobExit(j); got != want {
			t.Errorf("%+v: got %d, want %d", j, got, want)
		}
	}
}
