package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDamageIsReportedAndNeverBelieved flips bytes and cuts the file: what is read is a value that was once written, and
// if it isn't the latest, the damage is reported.
func TestDamageIsReportedAndNeverBelieved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	j := open(t, path, 2)
	history := map[string]bool{}
	note := func() {
		for _, e := range j.Entries() {
			history[fmt.Sprint(e.JobID, e.Log, e.Completion)] = true
		}
	}
	for _, n := range []int64{1, 2} {
		if err := j.Begin(entry(n)); err != nil {
			t.Fatal(err)
		}
		note()
		for records := range int64(3) {
			if err := j.SetLog(entry(n).JobID, n, LogState{Records: records}); err != nil {
				t.Fatal(err)
			}
			note()
		}
	}
	latest := fmt.Sprint(j.Entries())
	j.Close()
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flips := 10 // a half, both ways each
	if os.Getenv("AGENTD_SOAK") != "" {
		flips = 200
	}
	var spots []int64
	for at := range int64(24) {
		spots = append(spots, at)
	}
	for i := range 2 {
		for half := range 2 {
			for range flips {
				spots = append(spots, halfOffset(i, half)+rand.Int64N(400))
			}
			spots = append(spots, halfOffset(i, half)+24, halfOffset(i, half)+28) // lengths
		}
	}
	check := func(what string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := Open(path, 2)
		if errors.Is(err, errVersion) {
			return // can't be: the checksum covers it
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer j.Close()
		for _, e := range j.Entries() {
			if !history[fmt.Sprint(e.JobID, e.Log, e.Completion)] {
				t.Errorf("%s: %+v was never written", what, e)
			}
		}
		if got := fmt.Sprint(j.Entries()); got != latest && len(j.Damage()) == 0 {
			t.Errorf("%s: something is missing and nothing was reported: %s", what, got)
		}
		for _, d := range j.Damage() {
			if d.Slot < 0 || d.Copy == "" {
				continue
			}
			kept, err := os.ReadFile(d.Copy)
			if err != nil || !bytes.Contains(data, bytes.TrimRight(kept[:min(len(kept), 400)], "\x00")) {
				t.Errorf("%s: %s doesn't hold the damaged bytes (%v)", what, d.Copy, err)
			}
			os.Remove(d.Copy)
		}
		for j.Free() > 0 { // and it works on
			if err := j.Begin(entry(int64(100 + j.Free()))); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	for _, at := range spots {
		for _, flip := range []byte{0x01, 0xff} {
			data := bytes.Clone(sound)
			data[at] ^= flip
			check(fmt.Sprintf("byte %d ^ %#x", at, flip), data)
		}
	}
	for _, size := range []int64{0, 1, 100, blockSize, blockSize + 10, blockSize + 100, halfOffset(0, 1), halfOffset(0, 1) + 50, halfOffset(1, 0), halfOffset(1, 0) + 1, halfOffset(1, 1) + 60, halfOffset(2, 0) - 1} {
		check(fmt.Sprintf("cut to %d", size), bytes.Clone(sound[:size]))
	}
	swapped := bytes.Clone(sound)
	copy(swapped[halfOffset(0, 0):halfOffset(1, 0)], sound[halfOffset(1, 0):])
	check("slot 1 in slot 0's place", swapped)
}

// What is left of an attempt says that it had not begun; what is damaged may have said that it had.
func TestDamagedStartIsNotTakenForNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path, 1)
	e := entry(1)
	if err := j.Begin(e); err != nil {
		t.Fatal(err)
	}
	began := j.slots[0].half
	if err := j.SetProc(e.JobID, e.Attempt, Proc{PID: 7}, e.AcceptedAt); err != nil {
		t.Fatal(err)
	}
	latest := j.slots[0].half
	j.Close()
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := func(half int) []byte {
		data := bytes.Clone(sound)
		data[halfOffset(0, half)+halfHeader+3] ^= 1
		return data
	}
	for what, c := range map[string]struct {
		data  []byte
		known bool // the process
	}{
		"the start is damaged":       {flipped(latest), false},
		"what was before is damaged": {flipped(began), true},
		"the file was cut":           {sound[:halfOffset(0, max(began, latest))], latest < began},
	} {
		data := c.data
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		j := open(t, path, 1)
		got := j.Entries()
		if len(got) != 1 || got[0].StartedAt.IsZero() || (got[0].Proc.PID != 0) != c.known {
			t.Errorf("%s: %+v, want one entry that may have run", what, got)
		}
		j.Close()
	}
}

func TestAnotherVersionIsNotTouched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	open(t, path, 1).Close()
	data, _ := os.ReadFile(path)
	data[8] = 2
	binary.LittleEndian.PutUint32(data[20:], crc32.Checksum(data[:20], castagnoli))
	os.WriteFile(path, data, 0o600)
	if _, err := Open(path, 1); !errors.Is(err, errVersion) {
		t.Errorf("got %v, want %v", err, errVersion)
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, data) {
		t.Error("the file was changed")
	}
}

// C7, C8: the space was taken before; a full disk then stops no update, and no start.
func TestFullDiskStopsNoUpdateAndNoStart(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("no tmpfs to be mounted: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	path := filepath.Join(dir, "journal")
	j := open(t, path, 3)
	fill(t, filepath.Join(dir, "logs"))
	for n := range int64(3) {
		if err := j.Begin(entry(n)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := j.SetCompletion(entry(n).JobID, n, numbered(n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	j.Remove("job_1", 1)
	j.Close()

	j = open(t, path, 16) // more slots than there is room for
	if got := j.Entries(); len(got) != 2 || j.Free() != 1 || !bytes.Equal(got[1].Completion.Result, numbered(2).Result) {
		t.Errorf("%d entries, %d free; want 2, 1 and the last result", len(got), j.Free())
	}
	j.Close()
	if _, err := Open(filepath.Join(dir, "other"), 3); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "no room for the reserved store (1732 KiB)") {
		t.Errorf("a new one: got %v, want it to say how much room is needed", err)
	}

	// Damage while nothing can be copied: what can be read is kept, what can't is left alone.
	data, _ := os.ReadFile(path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for half := range 2 {
		f.WriteAt([]byte{data[halfOffset(2, half)] ^ 1}, halfOffset(2, half))
	}
	f.Close()
	j = open(t, path, 3)
	if len(j.Damage()) != 2 || j.Damage()[0].Copy != "" || j.Free() != 1 || len(j.Entries()) != 1 {
		t.Errorf("damage %+v, %d free, %d entries; want 2 without a copy, 1, 1", j.Damage(), j.Free(), len(j.Entries()))
	}
	j.Close()
	os.Remove(filepath.Join(dir, "logs"))
	j = open(t, path, 3)
	if len(j.Damage()) != 2 || j.Damage()[0].Copy == "" || j.Free() != 2 {
		t.Errorf("with room again: damage %+v, %d free; want 2 copied, 2", j.Damage(), j.Free())
	}
}

func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{64 << 10, 4096, 1} {
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}

func TestReadOnlyDiskIsSaid(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "size=1m"); err != nil {
		t.Skipf("no tmpfs to be mounted: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if _, err := Open(filepath.Join(dir, "journal"), 1); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "is on a read-only file system") {
		t.Errorf("got %v, want it said", err)
	}
}

// After a sync that failed, what was written reads back and may not be on the disk. A power cut leaves the half before, which is
// not written over until another one is on the disk.
func TestFailedSyncLeavesWhatTheDiskHas(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"), 1)
	defer j.Close()
	e := entry(1)
	if err := j.Begin(e); err != nil {
		t.Fatal(err)
	}
	known := j.slots[0].half
	reopen := j.reopen
	var writes []int64
	j.reopen = func() (device, error) {
		dev, err := reopen()
		return noting{dev, &writes}, err
	}
	j.dev = faulty{j.dev, new(int)}
	if err := j.SetLog(e.JobID, 1, LogState{Records: 1}); err != nil {
		t.Fatal(err)
	}
	if len(writes) != 1 || writes[0] != halfOffset(0, 1-known) {
		t.Errorf("written at %v after the failure; want once, and not at %d, which the disk has", writes, halfOffset(0, known))
	}
}

// noting notes where it is written to.
type noting struct {
	device
	at *[]int64
}

func (n noting) WriteAt(p []byte, at int64) (int, error) {
	*n.at = append(*n.at, at)
	return n.device.WriteAt(p, at)
}
