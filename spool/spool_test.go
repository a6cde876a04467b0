package spool

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"
)

func TestAppendedBatchesAreReadBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
	next := r.fill("a/1", 100, 200, 10, 64<<10) // more than an epoch of 8 MiB
	r.expect("a/1", 100, next, 64<<10)
	b, err := r.Read("a/1", 105)
	if err != nil || b.First != 100 || b.Count != 10 || b.Encoding != 3 || b.Decoded != 128<<10 {
		t.Fatalf("got %d+%d, %v", b.First, b.Count, err)
	}
	if _, err := r.Read("a/1", next); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v", err)
	}
	in := r.Attempts()
	if len(in) != 1 || in[0].First != 100 || in[0].Next != next || in[0].Batches != 200 || string(in[0].Meta) != "meta of a/1" {
		t.Fatalf("got %+v", in)
	}
	if st := r.Stats(); st.Epochs < 2 {
		t.Fatalf("%d epochs", st.Epochs)
	}
	r.stop()
	r = start(t, Config{Dir: dir, MaxSize: 64 << 20})
	r.expect("a/1", 100, next, 64<<10)
	r.Ack("a/1", next)
	r.stop()
	if st := r.Stats(); st.Epochs != 0 || st.DiskUsed != 0 {
		t.Fatalf("after the drain: %+v", st)
	}
}

// What is known of an attempt goes with its last batch: an agent that lives for years spills many.
func TestAttemptsAreForgotten(t *testing.T) {
	t.Parallel()
	r := start(t, Config{Dir: filepath.Join(fastDir(t), "s"), MaxSize: 64 << 20})
	for i := range 100 {
		id := fmt.Sprintf("job%d/1", i)
		r.SetMeta(id, []byte("m"))
		must(t, r.Append(t.Context(), batch(id, 0, 10, 100)))
		r.Ack(id, 10)
	}
	for changed := r.Changed(); r.Stats().Epochs > 0; changed = r.Changed() {
		<-changed
	}
	r.mu.Lock()
	left := len(r.attempts)
	r.mu.Unlock()
	if left != 0 {
		t.Errorf("%d of 100 attempts are remembered", left)
	}
	// One that prints again after all of it was taken begins where it left off.
	r.SetMeta("job1/1", []byte("m"))
	must(t, r.Append(t.Context(), batch("job1/1", 10, 10, 100)))
	r.expect("job1/1", 10, 20, 100)
	r.stop()
}
