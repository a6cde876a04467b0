package exec

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/agent/protocol"
)

func TestOutcomesAreToldApart(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		for _, c := range []struct {
			name, script string
			spec         Spec
			want         Result
		}{
			{"success", "echo hello", Spec{}, Result{Outcome: protocol.Succeeded}},
			{"exit code", "exit 3", Spec{}, Result{Outcome: protocol.Failed, ExitCode: 3, Error: "exit status 3"}},
			{"signal", "kill -SEGV $$", Spec{}, Result{Outcome: protocol.Failed, ExitCode: 139, Signal: "SIGSEGV", Error: "killed by SIGSEGV"}},
			{"someone else's SIGKILL", "kill -KILL $$", Spec{}, Result{Outcome: protocol.Failed, ExitCode: 137, Signal: "SIGKILL", Error: "killed by SIGKILL"}},
			{
				"timeout", "sleep 600",
				Spec{Timeout: 50 * time.Millisecond, Grace: time.Second},
				Result{Outcome: protocol.TimedOut, ExitCode: 143, Signal: "SIGTERM", Error: "timed out after 50ms", Cause: ErrTimedOut},
			},
			{
				"timeout, and a clean exit on TERM", "trap 'exit 0' TERM; sleep 600 & wait",
				Spec{Timeout: 200 * time.Millisecond, Grace: time.Second},
				Result{Outcome: protocol.TimedOut, Error: "timed out after 200ms", Cause: ErrTimedOut},
			},
		} {
			t.Run(c.name, func(t *testing.T) {
				got, tr := run(t, r, c.script, c.spec)
				if got.StartedAt.IsZero() || got.FinishedAt.Before(got.StartedAt) {
					t.Errorf("from %v to %v, want an order", got.StartedAt, got.FinishedAt)
				}
				got.StartedAt, got.FinishedAt = time.Time{}, time.Time{}
				if !equal(got, c.want) {
					t.Errorf("got  %+v\nwant %+v", got, c.want)
				}
				wantNobody(t, tr.proc)
			})
		}
		wantNothingLeft(t, r)
	})
}

func equal(a, b Result) bool {
	x, _ := json.Marshal(a) //nolint:musttag // only to compare
	y, _ := json.Marshal(b) //nolint:musttag // only to compare
	return string(x) == string(y) && errors.Is(a.Cause, b.Cause)
}

func TestCouldNotStartIsToldApartAndNamesTheFix(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	inEachMode(t, func(t *testing.T, r *Runner) {
		for _, c := range []struct {
			name string
			spec Spec
			code int
			want string
		}{
			{"no such file", Spec{Command: []string{dir + "/no"}}, 127, "/no doesn't exist; correct the handler's `command`"},
			{"not in PATH", Spec{Command: []string{"no-such-command"}}, 127, "no-such-command was not found in PATH="},
			{"relative", Spec{Command: []string{"./no"}}, 127, "give its absolute path"},
			{"empty", Spec{}, 127, "`command` is empty"},
			{"not executable", Spec{Command: []string{write("plain", "x", 0o644)}}, 126, "is not executable (chmod +x"},
			{"a directory", Spec{Command: []string{dir}}, 126, "is a directory"},
			{"no interpreter", Spec{Command: []string{write("script", "#!/no/such/sh\n", 0o755)}}, 127, "its interpreter"},
			{"not a program", Spec{Command: []string{write("noise", "\x01\x02\x03", 0o755)}}, 126, "neither a binary"},
			{"unknown user", Spec{Command: []string{"true"}, User: "no-such-user"}, 126, `user "no-such-user" is unknown on this host; create it`},
			{"bad job id", Spec{JobID: "../x", Command: []string{"true"}}, 126, "is not a job id"},
			{"bad env name", Spec{Command: []string{"true"}, Env: []string{"A B=1"}}, 126, `"A B" is not a name`},
			{"the loader's env", Spec{Command: []string{"true"}, Env: []string{"LD_PRELOAD=/x"}}, 126, "may not set LD_PRELOAD"},
			{"our env", Spec{Command: []string{"true"}, Env: []string{"AGENTD_RESULT=/etc/passwd"}}, 126, "may not set AGENTD_RESULT"},
			{"the journal failed", Spec{Command: []string{"true"}, Started: func(Proc) error { return errors.New("no slot") }}, 126, "no slot"},
		} {
			t.Run(c.name, func(t *testing.T) {
				got := begin(t, r, c.spec).wait()
				if !got.NotStarted || got.Outcome != protocol.Failed || got.ExitCode != c.code || !strings.Contains(got.Error, c.want) {
					t.Errorf("got %+v, want not started, code %d, an error with %q", got, c.code, c.want)
				}
				if !strings.HasPrefix(got.Error, "could not start: ") {
					t.Errorf("error %q doesn't say that it could not start", got.Error)
				}
			})
		}
		wantNothingLeft(t, r)
	})
}

func TestEndedBeforeItStarted(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupOff})
	cause := errors.New("lease lost")
	for _, when := range []string{"before", "while it is journalled"} {
		t.Run(when, func(t *testing.T) {
			mark := filepath.Join(t.TempDir(), "ran")
			var tr *trial
			ready := make(chan struct{})
			tr = begin(t, r, Spec{Command: []string{"touch", mark}, Started: func(Proc) error {
				<-ready
				tr.cancel(cause)
				return nil
			}})
			if when == "before" {
				tr.cancel(cause)
			}
			close(ready)
			got := tr.wait()
			if !got.NotStarted || got.Outcome != protocol.Cancelled || !errors.Is(got.Cause, cause) || !strings.Contains(got.Error, "lease lost") {
				t.Errorf("got %+v, want cancelled, not started, and the cause", got)
			}
			if _, err := os.Stat(mark); err == nil {
				t.Error("the command ran")
			}
		})
	}
}

func TestEnvironmentStdinAndResult(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		r.cfg.Environ = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "AGENTD_TOKEN=secret", "AWS_SECRET_ACCESS_KEY=secret", "EXTRA=yes"}
		r.cfg.PassEnv = []string{"EXTRA"}
		res, tr := run(t, r, `cat; env | sort; printf '{"n": 1}' >"$AGENTD_RESULT"; pwd; cat /proc/self/oom_score_adj`,
			Spec{JobID: "job_7", Attempt: 3, Type: "extract", Stdin: []byte("the payload\n"), Env: []string{"K=V", "LC_ALL=C.UTF-8"}})
		if res.Outcome != protocol.Succeeded || string(res.JSON) != `{"n": 1}` {
			t.Fatalf("got %+v (%s), want success with the result", res, tr.err.text())
		}
		dir := tr.proc.WorkDir
		want := []string{
			"the payload", "AGENTD_ATTEMPT=3", "AGENTD_JOB_ID=job_7", "AGENTD_RESULT=" + dir + "/result.json", "AGENTD_TYPE=extract",
			"AGENTD_WORK_DIR=" + dir, "EXTRA=yes", "K=V", "LC_ALL=C.UTF-8", "PATH=/usr/bin:/bin", "PWD=" + dir, dir, "500",
		}
		if got := strings.TrimSpace(tr.out.text()); got != strings.Join(want, "\n") {
			t.Errorf("the job saw\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
		wantNothingLeft(t, r)
	})
}

func TestResultIsBoundedAndNeverFollowed(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupOff})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(`{"secret":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(secret, filepath.Join(r.cfg.WorkRoot, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, script, want, result string }{
		{"none", `:`, "", ""},
		{"empty", `: >"$AGENTD_RESULT"`, "", ""},
		{"largest", `printf '"%0262142d"' 0 >"$AGENTD_RESULT"`, "", `"` + strings.Repeat("0", MaxResult-2) + `"`},
		{"too large", `printf '"%0262143d"' 0 >"$AGENTD_RESULT"`, "AGENTD_RESULT is too large: 262145 bytes", ""},
		{"sparse giant", `truncate -s 1T "$AGENTD_RESULT"`, "AGENTD_RESULT is too large", ""},
		{"not JSON", `echo '{"a":' >"$AGENTD_RESULT"`, "AGENTD_RESULT is not valid JSON", ""},
		{"symlink", `ln -s ` + secret + ` "$AGENTD_RESULT"`, "AGENTD_RESULT is not a regular file", ""},
		{"hard link", `ln ` + filepath.Join(r.cfg.WorkRoot, "link") + ` "$AGENTD_RESULT"`, "AGENTD_RESULT is a hard link", ""},
		{"fifo", `mkfifo "$AGENTD_RESULT"`, "AGENTD_RESULT is not a regular file", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, _ := run(t, r, c.script, Spec{})
			if string(res.JSON) != c.result || !strings.Contains(res.Error, c.want) || (c.want == "") != (res.Outcome == protocol.Succeeded) {
				t.Errorf("got %s, error %q, %d bytes; want error %q, %d bytes", res.Outcome, res.Error, len(res.JSON), c.want, len(c.result))
			}
		})
	}
}

func TestRunsAsTheHandlersUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run jobs as somebody else")
	}
	inEachMode(t, func(t *testing.T, r *Runner) {
		res, tr := run(t, r, `id -un; echo "$HOME $USER"; stat -c '%U %a' "$AGENTD_WORK_DIR"; echo 1 >"$AGENTD_RESULT"; echo direct >/dev/stdout; chmod 0 .`, Spec{User: "nobody"})
		if want := "nobody\n/nonexistent " + "nobody\n" + "nobody 700\ndirect\n"; res.Outcome != protocol.Succeeded || tr.out.text() != want || string(res.JSON) != "1\n" {
			t.Errorf("got %+v, %q %q, want success and %q", res, tr.out.text(), tr.err.text(), want)
		}
		wantNothingLeft(t, r)
	})
}

func TestWorkDirIsKeptOnRequest(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupOff})
	_, tr := run(t, r, "echo left >file", Spec{KeepWorkDir: true})
	kept := filepath.Join(r.cfg.WorkRoot, "kept-"+strings.TrimPrefix(filepath.Base(tr.proc.WorkDir), "a-"))
	if got, err := os.ReadFile(filepath.Join(kept, "file")); string(got) != "left\n" {
		t.Errorf("kept file: %q, %v", got, err)
	}
	if !tr.remarked(kept) {
		t.Errorf("remarks %q don't say where it was kept", tr.remarks)
	}
	r.Sweep(t.Context(), nil)
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a sweep took what was kept: %v", err)
	}
}

// L12
func TestFiftyMegabytesAndExitAtOnce(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		tr := begin(t, r, Spec{Command: []string{"/proc/self/exe"}, Env: []string{helper + "=flood"}})
		// The shim resolves /proc/self/exe in the command's own process, which is this test binary.
		res := tr.wait()
		if res.Outcome != protocol.Succeeded || !strings.HasSuffix(string(tr.out.last), "\nthe last line without newline") || tr.out.size != floodSize {
			t.Errorf("got %+v, %d bytes ending in %q; want %d bytes and the last line", res, tr.out.size, tr.out.last, floodSize)
		}
	})
}

const (
	floodLine = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456\n"
	floodLast = "the last line without newline"
	floodSize = int64(50<<20/len(floodLine)*len(floodLine) + len(floodLast))
)

func helperFlood() {
	piece := []byte(strings.Repeat(floodLine, 1000))
	for left := floodSize - int64(len(floodLast)); left > 0; {
		n, err := os.Stdout.Write(piece[:min(int64(len(piece)), left)])
		if err != nil {
			os.Exit(1)
		}
		left -= int64(n)
	}
	io.WriteString(os.Stdout, floodLast)
	os.Exit(0)
}

// slow is a reader under back-pressure: it takes one piece, then waits to be let go.
type slow struct {
	sink *sink
	went chan struct{}
}

func (s *slow) ReadFrom(r io.Reader) (int64, error) {
	<-s.went
	return s.sink.ReadFrom(r)
}

func TestBackPressureLosesNothingAndTheOutcomeIsToldMeanwhile(t *testing.T) {
	r := newRunner(t, Config{PipeWait: 100 * time.Millisecond, Cgroup: CgroupOff})
	s := &slow{sink: newSink(), went: make(chan struct{})}
	told := make(chan Result, 1)
	tr := begin(t, r, Spec{
		Command: []string{"sh", "-c", "echo first; echo last"}, Stdout: s,
		Exited: func(res Result) { told <- res },
	})
	select {
	case res := <-told:
		if res.Outcome != protocol.Succeeded {
			t.Errorf("told %+v, want success", res)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the outcome was not told while the reader was held up")
	}
	select {
	case res := <-tr.result:
		t.Fatalf("ended with %+v before the reader had the output", res)
	case <-time.After(700 * time.Millisecond): // longer than PipeWait and all that follows it
	}
	close(s.went)
	tr.wait()
	if got, want := s.sink.text(), "first\nlast\n"; got != want {
		t.Errorf("read %q, want %q", got, want)
	}
}

func TestStdinThatIsNotReadHoldsNothingUp(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupOff})
	res, _ := run(t, r, "exit 0", Spec{Stdin: make([]byte, 1<<20)})
	if res.Outcome != protocol.Succeeded {
		t.Errorf("got %+v", res)
	}
}

func TestCommandThatIsTalkedTo(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupOff})
	in, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	tr := begin(t, r, Spec{Command: []string{"sh", "-c", `while read -r line; do echo "got $line"; done`}, StdinFile: in})
	for _, line := range []string{"one", "two"} {
		io.WriteString(say, line+"\n")
		tr.out.waitFor(t, "got "+line)
	}
	in.Close() // the shim and the command have theirs
	say.Close()
	if res := tr.wait(); res.Outcome != protocol.Succeeded {
		t.Errorf("got %+v", res)
	}
}

func TestJobStartsWithCleanSignalsAndItsOwnSession(t *testing.T) {
	signal.Ignore(syscall.SIGUSR2) // as a parent may have done: jobs don't inherit it
	defer signal.Reset(syscall.SIGUSR2)
	r := newRunner(t, Config{Cgroup: CgroupOff})
	res, tr := run(t, r, `grep -E '^Sig(Blk|Ign)' /proc/self/status; ls -l /proc/self/fd | wc -l; kill -INT $$; echo not reached`, Spec{})
	// ls: a total, 0, 1, 2, and the directory itself.
	want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n5\n"
	if tr.out.text() != want || res.Signal != syscall.SIGINT.String() && res.Signal != "SIGINT" {
		t.Errorf("got %q, signal %q; want %q, SIGINT", tr.out.text(), res.Signal, want)
	}
}
