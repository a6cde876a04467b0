package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const greedyEnv = "AGENTD_SPOOL_GREEDY"

// mounted gives a file system of its own of so many MiB. Without it the full-disk promises are not
// tested at all, so that failing to mount fails the test.
func mounted(t *testing.T, kind string, mib int) string {
	t.Helper()
	dir := t.TempDir()
	var err error
	switch kind {
	case "tmpfs":
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib))
	case "ext4":
		image := filepath.Join(t.TempDir(), "image")
		must(t, os.WriteFile(image, nil, 0o600))
		must(t, os.Truncate(image, int64(mib)<<20))
		for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir}} {
			if out, e := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); e != nil {
				err = fmt.Errorf("%v: %w: %s", args, e, out)
				break
			}
		}
	}
	if err != nil {
		t.Fatalf("NO %s COULD BE MOUNTED, SO THE FULL DISK IS NOT TESTED (root is needed): %v", kind, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			if os.Getenv(greedyEnv) == "" {
				t.Errorf("unmount: %v", err)
			}
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// filler takes all the space that is left, and goes on taking what becomes free until it is stopped.
type filler struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	path string
}

func fillDisk(t *testing.T, dir string, greedy bool) *filler {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &filler{stop: cancel, path: filepath.Join(dir, "filler")}
	out, err := os.Create(f.path)
	must(t, err)
	full := make(chan struct{})
	f.wg.Go(func() {
		defer out.Close()
		block := make([]byte, 64<<10)
		again := time.NewTicker(time.Millisecond)
		defer again.Stop()
		once := sync.OnceFunc(func() { close(full) })
		for ctx.Err() == nil {
			if _, err := out.Write(block); err != nil {
				if len(block) > 4<<10 {
					block = block[:4<<10]
					continue
				}
				once()
				if !greedy {
					return
				}
				block = block[:cap(block)]
				select { // another process, as it is: it tries again and again
				case <-again.C:
				case <-ctx.Done():
				}
			}
		}
		once()
	})
	<-full
	t.Cleanup(f.free)
	return f
}

func (f *filler) free() {
	f.stop()
	f.wg.Wait()
	_ = os.Remove(f.path)
}

// TestC7DiskFullBySomebodyElse: the disk fills while we spill, stays full, is freed.
func TestC7DiskFullBySomebodyElse(t *testing.T) {
	t.Parallel()
	greedy := os.Getenv(greedyEnv) != ""
	if !greedy {
		// A filler that takes what becomes free at once may make us leave a database open for good,
		// with its goroutines and mappings: by design, and so in a process of its own.
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), greedyEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("with a greedy filler: %v\n%s", err, out)
		}
	}
	for _, kind := range []string{"tmpfs", "ext4"} {
		{
			t.Run(fmt.Sprintf("%s greedy=%v", kind, greedy), func(t *testing.T) {
				disk := mounted(t, kind, 96)
				dir := filepath.Join(disk, "spool")
				r := start(t, Config{Dir: dir, MaxSize: 1 << 30})
				next := r.fill("a/1", 0, 100, 10, 200<<10) // one epoch is open, and others sealed
				f := fillDisk(t, disk, greedy)
				changed := r.Changed()
				var err error
				for err == nil { // what is allocated still takes entries
					if err = r.Append(t.Context(), batch("a/1", next, 10, 200<<10)); err == nil {
						next += 10
					}
				}
				if !errors.Is(err, ErrFull) {
					t.Fatalf("on a full disk: %v", err)
				}
				for range 3 {
					if err := r.Append(t.Context(), batch("a/1", next, 10, 200<<10)); !errors.Is(err, ErrFull) {
						t.Fatalf("on a full disk: %v", err)
					}
				}
				r.expect("a/1", 0, next, 200<<10)
				if st := r.Stats(); !st.Full {
					t.Fatal("not said to be full")
				}
				f.free()
				select {
				case <-changed:
				case <-time.After(10 * time.Second):
					t.Fatal("nobody said that there is room again")
				}
				must(t, r.Append(t.Context(), batch("a/1", next, 10, 200<<10)))
				next += 10
				r.expect("a/1", 0, next, 200<<10)
				r.stop()
				f = fillDisk(t, disk, false) // and it starts on a full disk: C8
				r = start(t, Config{Dir: dir, MaxSize: 1 << 30})
				r.expect("a/1", 0, next, 200<<10)
				if err := r.Append(t.Context(), batch("a/1", next, 10, 200<<10)); !errors.Is(err, ErrFull) {
					t.Fatalf("on a full disk: %v", err)
				}
				r.Ack("a/1", next) // draining is what makes room
				select {
				case <-r.Changed():
				case <-time.After(10 * time.Second):
					t.Fatal("the drained epochs didn't make room")
				}
				r.SetMeta("a/1", []byte("m"))
				must(t, r.Append(t.Context(), batch("a/1", next, 10, 200<<10)))
				r.stop()
				f.free()
			})
		}
	}
}

// TestC7DiskFullByUs: a disk smaller than the cap is filled by the spool alone, drained, filled again.
func TestC7DiskFullByUs(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			disk := mounted(t, kind, 64)
			r := start(t, Config{Dir: filepath.Join(disk, "spool"), MaxSize: 1 << 30, MinFree: 0.05})
			r.SetMeta("a/1", []byte("m"))
			var first, next int64
			for range 2 {
				var err error
				for err == nil {
					r.SetMeta("a/1", []byte("m"))
					if err = r.Append(t.Context(), batch("a/1", next, 1, 200<<10)); err == nil {
						next++
					}
				}
				if !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
				if held := (next - first) * 200 << 10; held < 24<<20 {
					t.Fatalf("only %d bytes fit a disk of 64 MiB", held)
				}
				free, total, err := fsSpace(disk)
				must(t, err)
				if float64(free) < 0.04*float64(total) {
					t.Fatalf("%d of %d bytes left to others", free, total)
				}
				r.expect("a/1", first, next, 200<<10)
				changed := r.Changed()
				r.Ack("a/1", next)
				first = next
				select {
				case <-changed:
				case <-time.After(10 * time.Second):
					t.Fatal("nobody said that there is room again")
				}
			}
			r.stop()
			if used := diskUsage(filepath.Join(disk, "spool")); used > 256<<10 {
				t.Fatalf("%d bytes used when drained", used)
			}
		})
	}
}

// TestC8FirstStartOnAFullDisk: not even the directories can be made.
func TestC8FirstStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	disk := mounted(t, "ext4", 32)
	f := fillDisk(t, disk, false)
	r := start(t, Config{Dir: filepath.Join(disk, "spool"), MaxSize: 64 << 20})
	r.SetMeta("a/1", []byte("m"))
	if err := r.Append(t.Context(), batch("a/1", 0, 1, 1000)); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v", err)
	}
	f.free()
	must(t, r.Append(t.Context(), batch("a/1", 0, 1, 1000)))
	r.expect("a/1", 0, 1, 1000)
	r.stop()
}

// TestC9UseStaysBelowTheCap pushes many times the cap through.
func TestC9UseStaysBelowTheCap(t *testing.T) {
	t.Parallel()
	total := int64(200 << 20)
	if os.Getenv("AGENTD_SOAK") != "" {
		total = 20 << 30
	}
	const limit = 64 << 20
	dir := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: dir, MaxSize: limit})
	r.SetMeta("a/1", []byte("m"))
	var next, acked, most int64
	data := payload("a/1", 0, 256<<10)
	for next*int64(len(data)) < total {
		changed := r.Changed()
		err := r.Append(t.Context(), Batch{Attempt: "a/1", First: next, Count: 1, Data: data})
		if errors.Is(err, ErrFull) {
			most = max(most, diskUsage(dir))
			acked += (next - acked) / 2
			r.Ack("a/1", max(acked, next-60))
			<-changed
			continue
		}
		must(t, err)
		if next++; next%64 == 0 {
			most = max(most, diskUsage(dir))
		}
	}
	if most > limit || most < limit/2 {
		t.Fatalf("%d bytes used at most, the cap is %d", most, limit)
	}
	r.Ack("a/1", next)
	r.stop()
	if used := diskUsage(dir); used > 64<<10 {
		t.Fatalf("%d bytes used when drained", used)
	}
}
