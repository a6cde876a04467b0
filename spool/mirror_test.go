package spool

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
)

// The kernel shows odd names otherwise than they are.
func TestMappingIsFoundWhateverTheDirectoryIsCalled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"with spaces ", "with\nnewline", "with (deleted)", "0000-1111 rw-s 00000000"} {
		dir := filepath.Join(fastDir(t), name)
		must(t, os.Mkdir(dir, dirMode))
		r := start(t, Config{Dir: dir, MaxSize: 64 << 20})
		r.SetMeta("a/1", []byte("m"))
		must(t, r.Append(t.Context(), batch("a/1", 0, 10, 100<<10)))
		r.expect("a/1", 0, 10, 100<<10)
		r.stop()
	}
}

// What badger wrote and we can't follow must not be taken for durable.
func TestMirrorRefusesWhatIsNotDue(t *testing.T) {
	t.Parallel()
	dir := fastDir(t)
	d, err := openDB(dir, layoutFor(16<<20), zap.NewNop())
	must(t, err)
	k := func(n int64) []byte {
		return appendKey(nil, key{kind: kindBatch, attempt: "a/1", first: n, next: n + 1})
	}
	value := appendValue(nil, k(0), header{count: 1}, []byte("data"))
	must(t, d.commit([]entry{{key: k(0), value: value}}))
	size := d.vlog.at
	if _, err := d.vlog.locate([]entry{{key: k(1)}}); err == nil {
		t.Error("an entry was located that was never written")
	}
	txn := d.badger.NewTransaction(true)
	must(t, txn.Set(k(7), value))
	must(t, txn.Commit())
	if err := d.commit([]entry{{key: k(1), value: value}}); err == nil {
		t.Error("a commit succeeded behind an entry that wasn't due")
	}
	if d.vlog.at != size {
		t.Errorf("%d bytes of it reached the file", d.vlog.at-size)
	}
	must(t, d.close())
}
