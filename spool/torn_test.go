package spool

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestC1KilledInTheMiddleOfAGroup cuts what one Append wrote at each of its batches, as a kill would: after half of the batch,
// and without up to 32 bytes at its beginning, which memmove stores last. What was whole before is there, the torn one and
// those behind it never were, and nothing is called lost: nobody was promised any of it, and the caller still has it.
func TestC1KilledInTheMiddleOfAGroup(t *testing.T) {
	t.Parallel()
	src := fastDir(t)
	r := start(t, Config{Dir: src, MaxSize: 64 << 20})
	r.SetMeta("a/1", []byte("m"))
	r.SetMeta("b/1", []byte("m"))
	const count, size = 10, 30 << 10
	var group []Batch
	for i := range int64(8) {
		group = append(group, batch("a/1", i*count, count, size), batch("b/1", i*count, count, size))
	}
	must(t, r.Append(t.Context(), group...))
	dir := filepath.Join(fastDir(t), "copy")
	copyTree(t, src, dir)
	r.stop()
	values, pointers := entriesOf(t, epochPath(dir, -1, vlogName)), entriesOf(t, epochPath(dir, -1, walName))
	if len(values) != len(group) || len(pointers) != len(values) {
		t.Fatalf("%d values and %d pointers of %d batches", len(values), len(pointers), len(group))
	}
	for head := range int64(33) {
		i := int(head) % len(values)
		e := values[i]
		mine := filepath.Join(fastDir(t), "s")
		copyTree(t, dir, mine)
		blank(t, epochPath(mine, -1, vlogName), e.valueAt+e.valueLen/2)
		overwrite(t, epochPath(mine, -1, vlogName), e.at, make([]byte, head)...)
		blank(t, epochPath(mine, -1, walName), pointers[i].at)
		want := map[string]int64{"a/1": 0, "b/1": 0}
		for _, b := range group[:i] {
			want[b.Attempt] = b.Next()
		}
		rd, err := OpenReader(mine)
		must(t, err)
		r := start(t, Config{Dir: mine, MaxSize: 64 << 20})
		for id, end := range want {
			if end > 0 {
				r.expect(id, 0, end, size)
			}
			for who, read := range map[string]func(string, int64) (Batch, error){"the spool": r.Read, "the reader": rd.Read} {
				if b, err := read(id, end); !errors.Is(err, io.EOF) {
					t.Fatalf("torn at batch %d, %d bytes missing at its beginning: %s has %d to %d of %s, %v; want nothing from %d on", i, head, who, b.First, b.Next(), id, err, end)
				}
			}
		}
		if st := r.Stats(); st.Corrupt != 0 || st.Quarantined > 8<<10 {
			t.Fatalf("torn at batch %d, %d bytes missing at its beginning: %d batches called corrupt, %d bytes in quarantine", i, head, st.Corrupt, st.Quarantined)
		}
		must(t, rd.Close())
		r.stop()
	}
}

// TestC1KilledBeforeTheMarker: an epoch's directory without anything in it is what a kill left, and no damage.
func TestC1KilledBeforeTheMarker(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fastDir(t), "s")
	r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
	r.SetMeta("a/1", []byte("m"))
	must(t, r.Append(t.Context(), batch("a/1", 0, 10, 1000)))
	r.stop()
	must(t, os.Mkdir(filepath.Join(dir, epochsDir, epochName(7)), dirMode))
	rd, err := OpenReader(dir)
	must(t, err)
	if d := rd.Damage(); len(d) > 0 {
		t.Errorf("the reader calls it damage: %v", d)
	}
	must(t, rd.Close())
	r = start(t, Config{Dir: dir, MaxSize: 64 << 20})
	r.expect("a/1", 0, 10, 1000)
	if st := r.Stats(); st.Corrupt != 0 || st.Quarantined != 0 || st.Epochs != 1 {
		t.Errorf("%+v; want one epoch and nothing in quarantine", st)
	}
	r.stop()
}

// blank zeroes a file from a position on, but not its size.
func blank(t *testing.T, path string, from int64) {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	must(t, os.Truncate(path, from))
	must(t, os.Truncate(path, info.Size()))
}
