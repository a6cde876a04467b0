package spool

import (
	"os"
	"path/filepath"
	"testing"
)

// unsealed tells how many epochs there are on disk that aren't sealed.
func unsealed(dir string) (n int) {
	for _, name := range dirNames(filepath.Join(dir, epochsDir)) {
		if _, err := os.Stat(filepath.Join(dir, epochsDir, name, indexName)); err != nil {
			n++
		}
	}
	return n
}

// prepared waits until the next epoch is there.
func (r *running) prepared() {
	r.t.Helper()
	must(r.t, r.inRun(r.t.Context(), func() error {
		if r.spare != nil {
			<-r.spare.done
		}
		return nil
	}))
}

// The next epoch is made while the open one fills up: a kill in between leaves nothing to report, and what is drained
// gives its space back.
func TestNextEpochIsMadeAhead(t *testing.T) {
	t.Parallel()
	src := fastDir(t)
	r := start(t, Config{Dir: src, MaxSize: 64 << 20, EpochSize: 8 << 20})
	const size = 100 << 10
	r.fill("a/1", 0, 10, 10, size)
	r.prepared()
	if n := unsealed(src); n != 1 {
		t.Fatalf("%d open epochs after a megabyte, want 1", n)
	}
	const full = 52 // of about 5.4 MB, nine tenths
	r.fill("a/1", 100, full-10, 10, size)
	r.prepared()
	if n := unsealed(src); n != 2 {
		t.Fatalf("%d open epochs when one is nearly full, want the next one, too", n)
	}
	if st := r.Stats(); st.Epochs != 1 || st.DiskUsed < 2*8<<20 {
		t.Fatalf("%+v, want one epoch, and the space of two", st)
	}
	dir := filepath.Join(fastDir(t), "killed")
	copyTree(t, src, dir)
	k := start(t, Config{Dir: dir, MaxSize: 64 << 20, EpochSize: 8 << 20})
	k.expect("a/1", 0, 10*full, size)
	if st := k.Stats(); st.Epochs != 1 || st.Corrupt+uint64(st.Quarantined) != 0 {
		t.Fatalf("after a kill: %+v", st)
	}
	k.stop()

	r.fill("a/1", 10*full, 120-full, 10, size) // through several changes of epochs
	r.expect("a/1", 0, 1200, size)
	r.Ack("a/1", 1200)
	r.stop()
	if st := r.Stats(); st.Epochs != 0 || diskUsage(src) > 64<<10 {
		t.Fatalf("drained: %+v, %d bytes used", st, diskUsage(src))
	}
}

// Where there is no room for two, no epoch is made before its time: the cap is for batches.
func TestNextEpochTakesNobodysRoom(t *testing.T) {
	t.Parallel()
	dir := fastDir(t)
	r := start(t, Config{Dir: dir, MaxSize: 20 << 20, EpochSize: 8 << 20})
	const size = 100 << 10
	r.fill("a/1", 0, 52, 10, size)
	r.prepared()
	if n := unsealed(dir); n != 1 {
		t.Fatalf("%d open epochs under a cap of two and a half, want 1", n)
	}
	r.fill("a/1", 520, 28, 10, size)
	r.expect("a/1", 0, 800, size)
	if used := diskUsage(dir); used > 20<<20 {
		t.Fatalf("%d bytes used", used)
	}
	r.stop()
}
