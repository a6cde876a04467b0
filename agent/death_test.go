package agent

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
)

func TestEndOfAnEarlierProcess(t *testing.T) {
	dir := t.TempDir()
	at := func(boot string) *End {
		t.Helper()
		a := &Agent{cfg: Config{RuntimeDir: dir}, log: zap.NewNop(), parts: parts{bootID: boot}}
		return a.takeLife()
	}
	note := func(result, status string) {
		t.Helper()
		if err := NoteEnd(dir, End{Result: result, Status: status}); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(e *End, want string) {
		t.Helper()
		if got := e.why(); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	const unknown = "the agent died (killed, out of memory, or crashed)"
	note("signal", "KILL") // nobody has lived here
	wants(at("boot-1"), unknown)
	wants(at("boot-1"), unknown) // killed, and nobody noted it
	note("watchdog", "ABRT")
	note("exit-code", "78") // a start that failed before it read the note
	wants(at("boot-1"), "the agent made no progress and was ended by the watchdog")
	wants(at("boot-1"), unknown) // read once
	note("signal", "SEGV")
	wants(at("boot-2"), unknown) // a reboot came in between, which is what ended the jobs
	note("core-dump", "SEGV")
	wants(at("boot-2"), "the agent crashed (SIGSEGV)")
	note("success", "0")
	wants(at("boot-2"), "the agent ended")

	// What can't be read is no reason not to start.
	if err := os.WriteFile(filepath.Join(dir, lifeName), []byte(`{"bootId`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NoteEnd(dir, End{Result: "signal"}); err == nil {
		t.Error("an end was noted in a damaged file")
	}
	wants(at("boot-2"), unknown)
	note("timeout", "KILL")
	wants(at("boot-2"), "the agent did not stop in time and was killed")
}
