package spool

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Whoever still has a batch that was refused goes by the highest number after a kill, and would take the batch for stored: so none that
// comes behind it in the same call may get in.
func TestNothingOvertakesWhatWasRefused(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: dir, MaxSize: 64 << 20, EpochSize: 32 << 20})
	taken := filepath.Join(dir, quarantineDir, "taken")
	must(t, allocate(taken, 50<<20, true))
	r.stop()
	r = start(t, Config{Dir: dir, MaxSize: 64 << 20, EpochSize: 32 << 20}) // which has room for 8 MiB now
	r.SetMeta("a/1", []byte("m"))
	big := batch("a/1", 0, 1, 10<<20)
	if err := r.Append(t.Context(), big, batch("a/1", 1, 1, 1000)); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	if b, err := r.Read("a/1", 0); !errors.Is(err, io.EOF) {
		t.Fatalf("%d to %d is there, %v; want nothing", b.First, b.Next(), err)
	}
	must(t, r.Append(t.Context(), batch("a/1", 0, 1, 1000), batch("a/1", 1, 1, 1000)))
	r.expect("a/1", 0, 2, 1000)
	r.stop()
	must(t, os.Remove(taken))
}

// byHand does what Run does with one call of Append and then at its end, but nothing is synced before all of the call is written.
// It returns what the call is answered; ok is false if it isn't.
func byHand(t *testing.T, wrap func(kv) kv, batches ...Batch) (s *Spool, answer error, ok bool) {
	t.Helper()
	s, err := Open(Config{Dir: filepath.Join(fastDir(t), "s"), MaxSize: 128 << 20, MinFree: -1})
	must(t, err)
	s.wrapKV = wrap
	s.SetMeta("a/1", []byte("m"))
	var caller, syncer sync.WaitGroup
	caller.Go(func() { _ = s.Append(t.Context(), batches...) })
	called := <-s.requests
	s.arriving.Add(-1)
	r := &request{items: called.items, answer: make(chan error, 1)}
	s.commitGroup(&group{requests: []*request{r}})
	syncer.Go(s.syncLoop)
	must(t, s.finish())
	close(s.syncs)
	syncer.Wait()
	called.answer <- ErrClosed
	caller.Wait()
	select {
	case answer = <-r.answer:
		ok = true
	default:
	}
	return s, answer, ok
}

// A spool that ends while epochs fail one after the other still answers whoever waits.
func TestFailureAtTheEndIsAnswered(t *testing.T) {
	t.Parallel()
	broken := errors.New("input/output error")
	_, err, ok := byHand(t, func(k kv) kv {
		var never, always atomic.Pointer[error]
		always.Store(&broken)
		return &failing{kv: k, commitErr: &never, syncErr: &always}
	}, batch("a/1", 0, 1, 100))
	if !ok || err == nil {
		t.Errorf("answered %v: %v; want an error", ok, err)
	}
}

// A commit that failed may have left nothing: another one on the same handle would, after a kill, be what is left of a call without its beginning.
func TestNothingIsCommittedBehindAFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("input/output error")
	var commitErr, never atomic.Pointer[error]
	commitErr.Store(&broken)
	var made []*failing
	s, err, ok := byHand(t, func(k kv) kv {
		made = append(made, &failing{kv: k, commitErr: &commitErr, syncErr: &never})
		return made[len(made)-1]
	}, batch("a/1", 0, 1, groupMax), batch("a/1", 1, 1, groupMax))
	if !ok || err != nil || len(made) != 2 {
		t.Fatalf("answered %v: %v, %d epochs; want no error, and a second epoch", ok, err, len(made))
	}
	if made[0].used.Load() {
		t.Error("the first epoch was used after it failed")
	}
	(&running{Spool: s, t: t}).expect("a/1", 0, 2, groupMax)
}

// The same range twice in one call, with other data: each is found where it is.
func TestSameRangeTwiceInOneCall(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
	r.SetMeta("a/1", []byte("m"))
	short := batch("a/1", 0, 10, 500)
	must(t, r.Append(t.Context(), short, batch("a/1", 0, 10, 1000)))
	r.expect("a/1", 0, 10, -1)
	if st := r.Stats(); st.Corrupt != 0 {
		t.Fatalf("%d batches called corrupt", st.Corrupt)
	}
}

// A kill in the middle of writing the write-ahead log leaves its beginning, up to the end of a memory page: that is no damage.
func TestC1KilledInTheMiddleOfTheWriteAheadLog(t *testing.T) {
	t.Parallel()
	src := fastDir(t)
	r := start(t, Config{Dir: src, MaxSize: 64 << 20})
	const batches, size = 150, 200
	next := r.fill("a/1", 0, batches, 10, size)
	dir := filepath.Join(fastDir(t), "copy")
	copyTree(t, src, dir)
	r.stop()
	last := entriesOf(t, epochPath(dir, -1, walName))[batches-1]
	for cut := int64(4 << 10); cut < last.at; cut += 4 << 10 {
		mine := filepath.Join(fastDir(t), "s")
		copyTree(t, dir, mine)
		blank(t, epochPath(mine, -1, walName), cut)
		r := start(t, Config{Dir: mine, MaxSize: 64 << 20})
		r.expect("a/1", 0, next, size)
		if _, err := os.Stat(epochPath(mine, 0, damagedName)); err == nil {
			t.Errorf("cut at %d: the epoch is called damaged", cut)
		}
		r.stop()
	}
}

// What a file looks like in /proc/self/maps isn't unique: another file system may have the same inode under the same name.
func TestMappingOfAnotherFileSystemIsNotTaken(t *testing.T) {
	t.Parallel()
	type mapped struct {
		f   *os.File
		mem []byte
	}
	var ms []mapped
	for range 2 {
		f, err := os.Create(filepath.Join(mounted(t, "tmpfs", 1), vlogName))
		must(t, err)
		defer f.Close()
		must(t, f.Truncate(64<<10))
		mem, err := unix.Mmap(int(f.Fd()), 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		defer unix.Munmap(mem) // or its file system stays mounted, which is told
		ms = append(ms, mapped{f, mem})
	}
	for i, m := range ms {
		at, err := mappingOf(m.f)
		must(t, err)
		if want := addressOf(m.mem); at != want {
			t.Errorf("mapping %d found at %x, it is at %x", i, at, want)
		}
	}
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// An epoch that couldn't be looked through when it was sealed is looked through when it is read, and its file is open once.
func TestUnscannedEpochIsOpenOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
	next := r.fill("a/1", 0, 3, 10, 1000)
	path := epochPath(dir, 0, vlogName)
	must(t, os.Rename(path, path+".aside"))
	must(t, os.Symlink(vlogName, path)) // to itself: opening it fails
	must(t, r.inRun(t.Context(), func() error {
		if err := r.sealOpen(); !errors.Is(err, unix.ELOOP) {
			t.Errorf("sealed with %v, want ELOOP", err)
		}
		return nil
	}))
	must(t, os.Rename(path+".aside", path))
	r.expect("a/1", 0, next, 1000)
	open := 0
	for _, fd := range dirNames("/proc/self/fd") {
		if of, err := os.Readlink(filepath.Join("/proc/self/fd", fd)); err == nil && of == path {
			open++
		}
	}
	if open != 1 {
		t.Errorf("it is open %d times, want once", open)
	}
	r.stop()
}

// Holes that couldn't be written are written when they can be: the full disk that refused them passes.
func TestHolesAreWrittenLater(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
	next := r.fill("a/1", 0, 3, 10, 1000)
	inTheWay := filepath.Join(dir, holesName+".tmp", "x")
	must(t, os.MkdirAll(inTheWay, 0o700))
	if err := r.Remove(t.Context(), "a/1"); err == nil {
		t.Fatal("got no error")
	}
	r.persistNow()
	must(t, os.RemoveAll(filepath.Dir(inTheWay)))
	r.persistNow()
	_, hs, damaged := stateFiles(dir)
	if want := []hole{{First: 0, Next: next, Reason: ReasonRemoved}}; len(damaged) != 0 || !slices.Equal(hs["a/1"].Holes, want) {
		t.Errorf("holes %v, damaged %v; want %v", hs["a/1"].Holes, damaged, want)
	}
	r.stop()
}
