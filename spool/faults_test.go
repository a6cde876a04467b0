package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// failing is a database whose calls fail as the test says.
type failing struct {
	kv
	commitErr, syncErr *atomic.Pointer[error]
	used               atomic.Bool // after it failed
	failed             atomic.Bool
}

func (f *failing) commit(entries []entry) error {
	if f.failed.Load() {
		f.used.Store(true)
	}
	if err := f.commitErr.Swap(nil); err != nil {
		f.failed.Store(true)
		return *err
	}
	return f.kv.commit(entries)
}

func (f *failing) sync() error {
	if f.failed.Load() {
		f.used.Store(true)
	}
	if err := f.syncErr.Swap(nil); err != nil {
		f.failed.Store(true)
		return *err
	}
	return f.kv.sync()
}

// TestFailedSyncIsNeverRetriedOnTheSameHandle: the epoch is given up, what it refused goes into a new
// one, and the caller notices nothing.
func TestFailedSyncIsNeverRetriedOnTheSameHandle(t *testing.T) {
	t.Parallel()
	var commitErr, syncErr atomic.Pointer[error]
	var mu sync.Mutex
	var made []*failing
	dir := filepath.Join(fastDir(t), "s")
	r := startWith(t, Config{Dir: dir, MaxSize: 128 << 20}, func(k kv) kv {
		mu.Lock()
		defer mu.Unlock()
		made = append(made, &failing{kv: k, commitErr: &commitErr, syncErr: &syncErr})
		return made[len(made)-1]
	})
	next := r.fill("a/1", 0, 10, 5, 20<<10)
	broken := errors.New("input/output error")
	syncErr.Store(&broken)
	next = r.fill("a/1", next, 10, 5, 20<<10)
	commitErr.Store(&broken)
	var wg sync.WaitGroup
	for i := range int64(4) {
		wg.Go(func() { // several under way at once
			id := fmt.Sprintf("b%d/1", i)
			r.SetMeta(id, []byte("meta of "+id))
			for n := range int64(10) {
				if n == 5 && i == 0 {
					syncErr.Store(&broken)
				}
				if err := r.Append(t.Context(), batch(id, n, 1, 9000)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	next = r.fill("a/1", next, 10, 5, 20<<10)
	for range 2 {
		r.expect("a/1", 0, next, 20<<10)
		for i := range 4 {
			r.expect(fmt.Sprintf("b%d/1", i), 0, 10, 9000)
		}
		r.stop()
		r = start(t, Config{Dir: dir, MaxSize: 128 << 20})
	}
	if len(made) < 3 {
		t.Fatalf("%d epochs, want a new one for each failure", len(made))
	}
	for i, f := range made {
		if f.used.Load() {
			t.Fatalf("epoch %d was used after it failed", i)
		}
	}
}

// TestAppendFailsWhenNoEpochWorks: three fresh epochs in a row, and the caller is told.
func TestAppendFailsWhenNoEpochWorks(t *testing.T) {
	t.Parallel()
	broken := errors.New("input/output error")
	r := startWith(t, Config{Dir: filepath.Join(fastDir(t), "s"), MaxSize: 128 << 20}, func(k kv) kv {
		var never, always atomic.Pointer[error]
		always.Store(&broken)
		return &failing{kv: k, commitErr: &never, syncErr: &always}
	})
	r.SetMeta("a/1", []byte("m"))
	if err := r.Append(t.Context(), batch("a/1", 0, 1, 100)); err == nil || errors.Is(err, ErrFull) {
		t.Fatalf("got %v", err)
	}
}

func TestDropOldestLeavesHoles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
	r.fill("a/1", 0, 10, 10, 5000)
	r.fill("b/1", 50, 1, 10, 5000)
	r.sealNow()
	next := r.fill("a/1", 100, 10, 10, 5000)
	freed, err := r.DropOldest()
	if err != nil || freed < 50000 {
		t.Fatalf("freed %d, %v", freed, err)
	}
	for range 2 {
		got, lost, err := walk(r.Read, "a/1", 0, 5000)
		must(t, err)
		if fmt.Sprint(got, lost) != "[{100 200 }] [{0 100 spoolFull}]" {
			t.Fatalf("have %v, lost %v", got, lost)
		}
		_, lost, err = walk(r.Read, "b/1", 50, 5000) // of which nothing else is left
		must(t, err)
		if fmt.Sprint(lost) != "[{50 60 spoolFull}]" {
			t.Fatalf("lost %v", lost)
		}
		in := r.Attempts()
		if len(in) != 2 || in[1].Attempt != "b/1" || in[1].Next != 60 || string(in[1].Meta) != "meta of b/1" {
			t.Fatalf("got %+v", in)
		}
		r.stop()
		r = start(t, Config{Dir: dir, MaxSize: 64 << 20})
	}
	r.Ack("a/1", next)
	r.Ack("b/1", 60)
	if in := r.Attempts(); len(in) != 0 {
		t.Fatalf("got %+v", in)
	}
}

func TestKeptEpochsAreReadableAndMakeRoom(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	cfg := Config{Dir: dir, MaxSize: 32 << 20, KeepShipped: time.Hour}
	r := start(t, cfg)
	next := r.fill("a/1", 0, 10, 10, 5000)
	r.sealNow()
	r.Ack("a/1", next)
	r.stop()
	r = start(t, cfg)
	rd, err := OpenReader(dir)
	must(t, err)
	if in := rd.Attempts(); len(in) != 1 || in[0].State != Shipped {
		t.Fatalf("got %+v", in)
	}
	got, lost, err := walk(rd.Read, "a/1", 0, 5000)
	if err != nil || fmt.Sprint(got, lost) != "[{0 100 }] []" {
		t.Fatalf("have %v, lost %v, %v", got, lost, err)
	}
	must(t, rd.Close())
	if in := r.Attempts(); len(in) != 0 {
		t.Fatalf("got %+v", in)
	}
	r.fill("b/1", 0, 130, 10, 200<<10) // 26 MB: only fits when the kept one goes
	r.expect("b/1", 0, 1300, 200<<10)
	if st := r.Stats(); st.DiskUsed > cfg.MaxSize {
		t.Fatalf("%d used", st.DiskUsed)
	}
}

func TestDeadLettersOrphansAndTheLock(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
	r.fill("a/1", 0, 3, 10, 5000)
	must(t, r.DeadLetter(batch("a/1", 7, 1, 300), "too large"))
	r.SetState("a/1", Orphan)
	_, err := Open(Config{Dir: dir})
	locked, ok := errors.AsType[*LockedError](err)
	if !ok || locked.PID != os.Getpid() {
		t.Fatalf("got %v", err)
	}
	r.stop()
	r = start(t, Config{Dir: dir, MaxSize: 64 << 20})
	if in := r.Attempts(); len(in) != 1 || in[0].State != Orphan {
		t.Fatalf("got %+v", in)
	}
	n := 0
	for d, err := range r.DeadLetters() {
		must(t, err)
		if n++; d.Reason != "too large" || d.Batch.First != 7 || string(d.Batch.Data) != string(payload("a/1", 7, 300)) || string(d.Meta) != "meta of a/1" {
			t.Fatalf("got %+v", d)
		}
	}
	if n != 1 || r.Stats().DeadLetters != 1 {
		t.Fatalf("%d dead letters", n)
	}
	must(t, r.Remove(t.Context(), "a/1"))
	if in, st := r.Attempts(), r.Stats(); len(in) != 0 || st.Batches != 0 {
		t.Fatalf("got %+v, %+v", in, st)
	}
	r.stop()
	r.SetMeta("a/1", []byte("m"))
	if err := r.Append(context.Background(), batch("a/1", 0, 1, 1)); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
}

// TestC5RemovalSurvivesACrashAtEachStep: acknowledged and not removed; renamed and not deleted;
// deleted and the cursors not written.
func TestC5RemovalSurvivesACrashAtEachStep(t *testing.T) {
	t.Parallel()
	src := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: src, MaxSize: 64 << 20})
	r.fill("a/1", 0, 10, 10, 5000)
	r.sealNow()
	r.fill("a/1", 100, 10, 10, 5000)
	r.stop()
	for name, crash := range map[string]func(dir string){
		"acknowledged": func(string) {},
		"renamed": func(dir string) {
			must(t, os.Rename(epochPath(dir, 0, ""), filepath.Join(dir, trashDir, epochName(1))))
		},
		"half deleted": func(dir string) {
			must(t, os.Rename(epochPath(dir, 0, ""), filepath.Join(dir, trashDir, epochName(1))))
			must(t, os.Remove(filepath.Join(dir, trashDir, epochName(1), vlogName)))
		},
		"deleted": func(dir string) { must(t, os.RemoveAll(epochPath(dir, 0, ""))) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(fastDir(t), "s")
			copyTree(t, src, dir)
			crash(dir)
			r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
			r.Ack("a/1", 100) // what the server says at the start
			r.expect("a/1", 100, 200, 5000)
			r.Ack("a/1", 200)
			r.stop() // what is being removed goes through the trash
			if n := len(dirNames(filepath.Join(dir, trashDir))) + len(dirNames(filepath.Join(dir, quarantineDir))); n != 0 {
				t.Fatalf("%d left in trash and quarantine", n)
			}
			if st := r.Stats(); st.Epochs != 0 {
				t.Fatalf("%d epochs", st.Epochs)
			}
		})
	}
}

// TestLifecycle ends Run at random moments while everything else goes on.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	for i := range 6 {
		r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
		var wg sync.WaitGroup
		var appended atomic.Int64
		for j := range 4 {
			wg.Go(func() {
				id := fmt.Sprintf("j%d/%d", j, i)
				r.SetMeta(id, []byte("m"))
				for n := int64(0); ; n++ {
					err := r.Append(context.Background(), batch(id, n, 1, 3000))
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					if b, err := r.Read(id, n); err != nil || b.First != n {
						t.Errorf("read %d: %d, %v", n, b.First, err)
					}
					r.Ack(id, n)
					appended.Add(1)
					_, _ = r.Attempts(), r.Stats()
				}
			})
		}
		for appended.Load() < int64(20+i*30) {
			<-time.After(time.Millisecond)
		}
		r.stop()
		wg.Wait()
	}
}
