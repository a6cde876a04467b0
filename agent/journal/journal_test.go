package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentd/agent/protocol"
	"agentd/internal/testmain"
)

const helper = "JOURNAL_TEST_HELPER"

func TestMain(m *testing.M) {
	if path := os.Getenv(helper); path != "" {
		helperWrite(path)
	}
	testmain.Run(m)
}

func open(t *testing.T, path string, slots int) *Journal {
	t.Helper()
	j, err := Open(path, slots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func entry(n int64) Entry {
	return Entry{
		JobID: "job_" + strconv.FormatInt(n, 10), Attempt: n, LeaseToken: "token", Type: "extract", Exclusive: true, BootID: "boot",
		AcceptedAt: time.UnixMicro(1_700_000_000_000_000 + n).UTC(),
	}
}

// whole gives e everything that an entry can hold.
func whole(t *testing.T, j *Journal, e Entry) Entry {
	t.Helper()
	e.Proc = Proc{PID: 7, StartTicks: 8, BootID: "boot", Cgroup: "/cg", WorkDir: "/w"}
	e.StartedAt = e.AcceptedAt.Add(time.Second)
	e.Log = LogState{Closed: true, Records: 42}
	e.Completion = &protocol.Completion{
		Attempt: e.Attempt, LeaseToken: e.LeaseToken, Outcome: protocol.Failed, ExitCode: 3, Signal: "SIGKILL", Error: "it <failed> & \u2028",
		Result: json.RawMessage(`{ "as": "it <is>" }`), LogRecords: 42, StartedAt: e.StartedAt, FinishedAt: e.StartedAt.Add(time.Minute),
	}
	for _, err := range []error{
		j.SetProc(e.JobID, e.Attempt, e.Proc, e.StartedAt), j.SetLog(e.JobID, e.Attempt, e.Log), j.SetCompletion(e.JobID, e.Attempt, *e.Completion),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func wantEntries(t *testing.T, j *Journal, want ...Entry) {
	t.Helper()
	if got := j.Entries(); !reflect.DeepEqual(got, want) {
		t.Errorf("entries:\n got %+v\nwant %+v", got, want)
	}
}

func TestEntriesSurviveAReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path, 3)
	a, b, c := entry(1), entry(2), entry(3)
	for _, e := range []Entry{c, a, b} {
		if err := j.Begin(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Begin(a); !errors.Is(err, ErrExists) {
		t.Errorf("twice: got %v, want %v", err, ErrExists)
	}
	if err := j.Begin(entry(4)); !errors.Is(err, ErrFull) || j.Free() != 0 {
		t.Errorf("a fourth: got %v, %d free; want %v, 0", err, j.Free(), ErrFull)
	}
	b = whole(t, j, b)
	if err := j.Remove(a.JobID, a.Attempt); err != nil {
		t.Fatal(err)
	}
	if err := j.Remove("job_9", 9); err != nil {
		t.Errorf("what isn't there: %v", err)
	}
	if err := j.SetLog("job_9", 9, LogState{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want %v", err, ErrNotFound)
	}
	wantEntries(t, j, b, c)
	if _, err := Open(path, 3); !errors.Is(err, ErrInUse) {
		t.Errorf("a second agent: got %v, want %v", err, ErrInUse)
	}
	j.Close()
	if err := j.Begin(a); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
	j = open(t, path, 5)
	wantEntries(t, j, b, c)
	if j.Free() != 3 || len(j.Damage()) != 0 {
		t.Errorf("%d free, damage %v; want it grown to 5, undamaged", j.Free(), j.Damage())
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || info.Size() != halfOffset(5, 0) {
		t.Errorf("file: %v, %v; want 0600 and %d bytes", info, err, halfOffset(5, 0))
	}
}

func TestSizesAreBoundedButAnErrorTextNeverCostsACompletion(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"), 1)
	e := entry(1)
	if err := j.Begin(e); err != nil {
		t.Fatal(err)
	}
	quoted := func(n int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", n-2) + `"`) }
	big := protocol.Completion{Outcome: protocol.Failed, Error: strings.Repeat("\x01é", 100_000), Result: quoted(MaxResult)}
	if err := j.SetCompletion(e.JobID, e.Attempt, big); err != nil {
		t.Fatalf("largest: %v", err)
	}
	big.Result = quoted(MaxResult + 1)
	if err := j.SetCompletion(e.JobID, e.Attempt, big); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want %v", err, ErrTooLarge)
	}
	if got := len(j.Entries()[0].Completion.Result); got != MaxResult {
		t.Errorf("the value before: a result of %d, want %d", got, MaxResult)
	}
}

// helperWrite updates one entry for ever and tells each update that is on disk.
func helperWrite(path string) {
	j, err := Open(path, 1)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	last := int64(0)
	if all := j.Entries(); len(all) == 1 {
		last = all[0].Completion.LogRecords
	} else if err := j.Begin(entry(1)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for n := last + 1; ; n++ {
		if err := j.SetCompletion("job_1", 1, numbered(n)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

func numbered(n int64) protocol.Completion {
	digit := string(rune('0' + n%10))
	return protocol.Completion{Outcome: protocol.Succeeded, LogRecords: n, Result: json.RawMessage(strings.Repeat(digit, MaxResult-int(n%100)))}
}

func TestKilledInTheMiddleOfAnUpdateTheOldValueOrTheNewOneIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	rounds := 20
	if os.Getenv("AGENTD_SOAK") != "" {
		rounds = 300
	}
	for round := range rounds {
		cmd := osexec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), helper+"="+path)
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		told := int64(0)
		for said := bufio.NewReader(pipe); ; {
			line, err := said.ReadString('\n')
			if err != nil {
				break
			}
			if told == 0 {
				time.AfterFunc(time.Duration(rand.IntN(20_000))*time.Microsecond, func() { cmd.Process.Kill() })
			}
			if _, err := fmt.Sscan(line, &told); err != nil {
				t.Fatalf("the writer said %q", line)
			}
		}
		cmd.Wait()
		if told == 0 {
			t.Fatal("the writer wrote nothing")
		}
		j, err := Open(path, 1)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(j.Entries()); n != 1 {
			t.Fatalf("round %d: %d entries, want 1", round, n)
		}
		for _, e := range j.Entries() {
			if e.Completion == nil {
				t.Fatalf("round %d: no completion, want %d", round, told)
			}
			got := e.Completion.LogRecords
			if got != told && got != told+1 {
				t.Fatalf("round %d: completion %d, want %d or the next", round, got, told)
			}
			if !bytes.Equal(e.Completion.Result, numbered(got).Result) {
				t.Fatalf("round %d: completion %d has another one's result", round, got)
			}
		}
		j.Close()
	}
}

// faulty fails the n-th sync and all after it, until it is opened again.
type faulty struct {
	device
	syncs *int
}

func (f faulty) Sync() error {
	if *f.syncs--; *f.syncs < 0 {
		return unix.EIO
	}
	return f.device.Sync()
}

func TestFailedSyncIsNotRepeatedOnTheSameHandle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path, 1)
	e := entry(1)
	if err := j.Begin(e); err != nil {
		t.Fatal(err)
	}
	open, opened := j.reopen, 0
	j.reopen = func() (device, error) { opened++; return open() }
	j.dev = faulty{j.dev, new(int)}
	if err := j.SetLog(e.JobID, 1, LogState{Records: 1}); err != nil || opened != 1 {
		t.Fatalf("got %v after %d reopens, want it written after one", err, opened)
	}
	// For good: an error, the value before stands, and the next update tries to open again.
	j.reopen = func() (device, error) { return nil, unix.EIO }
	j.dev = faulty{j.dev, new(int)}
	if err := j.SetLog(e.JobID, 1, LogState{Records: 2}); !errors.Is(err, unix.EIO) || j.Entries()[0].Log.Records != 1 {
		t.Fatalf("got %v, %+v; want EIO and the value before", err, j.Entries()[0].Log)
	}
	j.reopen = open
	if err := j.SetLog(e.JobID, 1, LogState{Records: 3}); err != nil {
		t.Fatal(err)
	}
	j.Close()
	if got := must(Open(path, 1)); got.Entries()[0].Log.Records != 3 {
		t.Errorf("got %+v, want 3 records", got.Entries()[0].Log)
	} else {
		got.Close()
	}
}

func must(j *Journal, err error) *Journal {
	if err != nil {
		panic(err)
	}
	return j
}

func FuzzDecodeHalf(f *testing.F) {
	for _, e := range []*Entry{nil, new(entry(1)), {JobID: "j", Completion: new(numbered(3))}} {
		data, err := encodeHalf(e, 7, 0, 0)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:min(len(data), 2048)])
	}
	f.Add([]byte{})
	f.Add(make([]byte, halfHeader))
	f.Add(append([]byte("AJH1\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), bytes.Repeat([]byte{0xff}, 8)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		seq, e, err := decodeHalf(bytes.NewReader(data), 0, 0)
		if err != nil {
			return
		}
		again, err := encodeHalf(e, seq, 0, 0)
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		if _, e2, err := decodeHalf(bytes.NewReader(again), 0, 0); err != nil || !reflect.DeepEqual(e, e2) {
			t.Fatalf("got %+v back (%v), want %+v", e2, err, e)
		}
	})
}
