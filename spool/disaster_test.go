package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// abandoned makes a spool as a SIGKILL leaves it: a copy taken while it runs. Its first epochs are
// sealed, its last one is open.
func abandoned(t *testing.T) (dir string, ends map[string]int64) {
	t.Helper()
	src := fastDir(t)
	r := start(t, Config{Dir: src, MaxSize: 64 << 20})
	r.fill("a/1", 0, 50, 10, 5<<10)
	r.sealNow()
	r.fill("a/1", 500, 50, 10, 5<<10)
	r.fill("b/1", 0, 20, 7, 3<<10)
	r.sealNow()
	r.fill("b/1", 140, 20, 7, 3<<10)
	r.fill("a/1", 1000, 20, 10, 5<<10)
	r.persistNow()
	dir = filepath.Join(fastDir(t), "copy")
	copyTree(t, src, dir)
	if n := len(dirNames(filepath.Join(dir, epochsDir))); n != 3 {
		t.Fatalf("%d epochs", n)
	}
	r.stop()
	return dir, map[string]int64{"a/1": 1200, "b/1": 280}
}

// fastDir is for tests that have nothing to learn from a disk's fsync.
func fastDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "spool-test-") //nolint:usetesting // on tmpfs
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// persistNow writes what the next tick would.
func (r *running) persistNow() {
	r.t.Helper()
	if err := r.inRun(r.t.Context(), func() error { r.persist(false); return nil }); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) sealNow() {
	r.t.Helper()
	if err := r.inRun(r.t.Context(), r.sealOpen); err != nil {
		r.t.Fatal(err)
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an epoch is being made, or sealed
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		info, err := d.Info()
		if err == nil {
			err = copySparse(path, target, info.Size())
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.Truncate(target, info.Size())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// copySparse copies only what was written, so that preallocated files are cheap.
func copySparse(from, to string, size int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		end, err2 := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, end-data)); err != nil {
			return err
		}
		at = end
	}
	return out.Close()
}

// epochPath names a file of the n-th epoch, from the end when n is negative.
func epochPath(dir string, n int, file string) string {
	names := dirNames(filepath.Join(dir, epochsDir))
	if n < 0 {
		n += len(names)
	}
	return filepath.Join(dir, epochsDir, names[n], file)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, path string, at int64, b ...byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(b, at)
	must(t, err)
	must(t, f.Close())
}

// lastEntries lists where the entries of an epoch's value log start.
func entriesOf(t *testing.T, path string) []logEntry {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	log := newLogReader(f, info.Size())
	var out []logEntry
	for at := int64(vlogFileHeader); ; {
		e, err := log.entry(at)
		if err != nil {
			return out
		}
		if k, err := parseKey(e.key); err == nil && k.kind == kindBatch {
			e.key = slices.Clone(e.key)
			out = append(out, e)
		}
		at += e.size
	}
}

// TestC2C4Disasters: what each kind of damage may cost, and not more.
func TestC2C4Disasters(t *testing.T) {
	t.Parallel()
	dir, ends := abandoned(t)
	table := []struct {
		name    string
		corrupt func(t *testing.T, dir string)
		lostA   int64 // records of a/1 that may be lost, exactly
		lostB   int64
		reason  string
	}{
		{name: "nothing", corrupt: func(*testing.T, string) {}},
		{name: "cursors gone", corrupt: func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, cursorsName))) }},
		{name: "cursors cut", corrupt: func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, cursorsName), 7)) }},
		{name: "lock file gone", corrupt: func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, lockName))) }},
		{name: "index gone", corrupt: func(t *testing.T, dir string) { must(t, os.Remove(epochPath(dir, 0, indexName))) }},
		{name: "index empty", corrupt: func(t *testing.T, dir string) { must(t, os.Truncate(epochPath(dir, 0, indexName), 0)) }},
		{name: "index length 0xffffffff", corrupt: func(t *testing.T, dir string) {
			overwrite(t, epochPath(dir, 0, indexName), 8, 0xff, 0xff, 0xff, 0xff)
		}},
		{name: "manifest gone", corrupt: func(t *testing.T, dir string) {
			for _, n := range []string{"MANIFEST", "KEYREGISTRY"} {
				must(t, os.Remove(epochPath(dir, 0, n)))
			}
		}},
		{name: "newest write-ahead log gone", corrupt: func(t *testing.T, dir string) { must(t, os.Remove(epochPath(dir, -1, walName))) }},
		{name: "newest write-ahead log empty", corrupt: func(t *testing.T, dir string) { must(t, os.Truncate(epochPath(dir, -1, walName), 0)) }},
		{name: "sealed value: one byte", corrupt: func(t *testing.T, dir string) {
			p := epochPath(dir, 0, vlogName)
			overwrite(t, p, entriesOf(t, p)[3].valueAt+500, 1, 2, 3)
		}, lostA: 10, reason: ReasonCorrupt},
		{name: "newest value: one byte", corrupt: func(t *testing.T, dir string) {
			p := epochPath(dir, -1, vlogName)
			e := entriesOf(t, p)
			overwrite(t, p, e[len(e)-1].valueAt+500, 1, 2, 3)
		}, lostA: 10, reason: ReasonCorrupt},
		{name: "newest value log: a length of 0xffffffff", corrupt: func(t *testing.T, dir string) {
			p := epochPath(dir, -1, vlogName)
			e := entriesOf(t, p)
			overwrite(t, p, e[len(e)-3].at+2, 0xff, 0xff, 0xff, 0xff, 0x0f)
		}, lostA: 0, reason: ""}, // found by the write-ahead log, or by what stands behind
		{name: "newest value log: a length, and no write-ahead log", corrupt: func(t *testing.T, dir string) {
			must(t, os.Remove(epochPath(dir, -1, walName)))
			p := epochPath(dir, -1, vlogName)
			e := entriesOf(t, p)
			overwrite(t, p, e[len(e)-3].at+2, 0xff, 0xff)
		}},
		{name: "value header's length 0xffffffff", corrupt: func(t *testing.T, dir string) {
			p := epochPath(dir, -1, vlogName)
			e := entriesOf(t, p)
			overwrite(t, p, e[len(e)-3].valueAt+16, 0xff, 0xff, 0xff, 0xff)
		}, lostA: 10, reason: ReasonCorrupt},
		{name: "newest value log cut by 1", corrupt: func(t *testing.T, dir string) { cutEntries(t, dir, 1) }, lostA: 10, reason: ReasonCorrupt},
		{name: "newest value log cut by 6000", corrupt: func(t *testing.T, dir string) { cutEntries(t, dir, 6000) }, lostA: 20, reason: ReasonCorrupt},
		{name: "sealed value log empty", corrupt: func(t *testing.T, dir string) { must(t, os.Truncate(epochPath(dir, 0, vlogName), 0)) }, lostA: -1},
		{name: "sealed value log gone", corrupt: func(t *testing.T, dir string) { must(t, os.Remove(epochPath(dir, 0, vlogName))) }, lostA: -1},
		{name: "newest value log empty", corrupt: func(t *testing.T, dir string) { must(t, os.Truncate(epochPath(dir, -1, vlogName), 0)) }, lostA: -1, lostB: -1},
		{name: "newest value log gone", corrupt: func(t *testing.T, dir string) { must(t, os.Remove(epochPath(dir, -1, vlogName))) }, lostA: -1, lostB: -1},
		{name: "an epoch gone", corrupt: func(t *testing.T, dir string) { must(t, os.RemoveAll(epochPath(dir, 0, ""))) }, lostA: -1},
		{name: "the newest epoch gone", corrupt: func(t *testing.T, dir string) { must(t, os.RemoveAll(epochPath(dir, -1, ""))) }, lostA: -1, lostB: -1},
		{name: "an epoch that never opened", corrupt: func(t *testing.T, dir string) {
			e := filepath.Join(dir, epochsDir, epochName(99))
			must(t, os.Mkdir(e, 0o700))
			must(t, os.WriteFile(filepath.Join(e, openingName), nil, 0o600))
			must(t, os.WriteFile(filepath.Join(e, ballastName), make([]byte, 1<<20), 0o600))
		}},
		{name: "trash", corrupt: func(t *testing.T, dir string) {
			must(t, os.MkdirAll(filepath.Join(dir, trashDir, "00000001", "x"), 0o700))
		}},
	}
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			mine := filepath.Join(fastDir(t), "s")
			copyTree(t, dir, mine)
			row.corrupt(t, mine)
			before := countBytes(mine)
			rd, err := OpenReader(mine)
			must(t, err)
			offA := judge(t, rd.Read, "a/1", ends["a/1"], row.lostA, row.reason)
			offB := judge(t, rd.Read, "b/1", ends["b/1"], row.lostB, row.reason)
			must(t, rd.Close())
			if after := countBytes(mine); after != before {
				t.Fatalf("the reader changed something: now\n%s, was\n%s", after, before)
			}
			for range 2 { // also after what the first start did
				r := start(t, Config{Dir: mine, MaxSize: 64 << 20})
				onA := judge(t, r.Read, "a/1", ends["a/1"], row.lostA, row.reason)
				onB := judge(t, r.Read, "b/1", ends["b/1"], row.lostB, row.reason)
				if onA != offA || onB != offB {
					t.Fatalf("lost a/1 %d, b/1 %d; offline %d, %d", onA, onB, offA, offB)
				}
				r.stop()
			}
			r := start(t, Config{Dir: mine, MaxSize: 64 << 20})
			r.fill("c/1", 0, 3, 1, 100)
			r.expect("c/1", 0, 3, 100)
			for id, end := range map[string]int64{"a/1": 2000, "b/1": 2000, "c/1": 3} {
				r.Ack(id, end)
			}
			r.stop()
			if st := r.Stats(); st.Epochs != 0 {
				t.Fatalf("%d epochs after the drain", st.Epochs)
			}
		})
	}
}

// judge is the oracle: each number up to the end is there with the right data, or is in a hole. a/1
// has none between 1000 and 1000: 0 to 1000 and 1000 to 1200 were written. It returns what is lost;
// want -1 allows any positive number.
func judge(t *testing.T, read func(string, int64) (Batch, error), id string, end, want int64, reason string) (lost int64) {
	t.Helper()
	got, holes, err := walk(read, id, 0, -1)
	must(t, err)
	var have int64
	last := int64(0)
	for _, g := range got {
		have += g.Next - g.First
		last = max(last, g.Next)
	}
	for _, h := range holes {
		lost += h.Next - h.First
		last = max(last, h.Next)
		if reason != "" && h.Reason != reason {
			t.Fatalf("%s: hole %v, want %s", id, h, reason)
		}
	}
	if have+lost != end || last != end {
		t.Fatalf("%s: have %v, holes %v, want all up to %d", id, got, holes, end)
	}
	if want >= 0 && lost != want || want < 0 && lost == 0 {
		t.Fatalf("%s: lost %d (%v), want %d", id, lost, holes, want)
	}
	return lost
}

func cutEntries(t *testing.T, dir string, n int64) {
	t.Helper()
	p := epochPath(dir, -1, vlogName)
	e := entriesOf(t, p)
	last := e[len(e)-1]
	must(t, os.Truncate(p, last.valueAt+last.valueLen-n))
}

func countBytes(dir string) string {
	var out strings.Builder
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				fmt.Fprintf(&out, "%s %d %s\n", path, info.Size(), info.ModTime())
			}
		}
		return nil
	})
	return out.String()
}

// TestC3RandomDamage flips bytes and cuts files at random, in every kind of file.
func TestC3RandomDamage(t *testing.T) {
	t.Parallel()
	rounds := 100
	if os.Getenv("AGENTD_SOAK") != "" {
		rounds = 1000
	}
	dir, ends := abandoned(t)
	var files []string
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			files = append(files, rel)
		}
		return err
	}))
	contents := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f))
		must(t, err)
		contents[f] = b[:lastNonZero(b)+1]
	}
	seed := rand.Uint64()
	t.Logf("seed %d, %d files", seed, len(files))
	rnd := rand.New(rand.NewPCG(seed, 0))
	mine := filepath.Join(fastDir(t), "s")
	for i := range rounds {
		must(t, os.RemoveAll(mine))
		copyTree(t, dir, mine)
		file := files[i%len(files)]
		path := filepath.Join(mine, file)
		b := contents[file]
		used := len(b)
		if used == 0 {
			continue
		}
		what := ""
		switch at := rnd.IntN(used); rnd.IntN(4) {
		case 0:
			what = fmt.Sprintf("cut at %d", at)
			must(t, os.Truncate(path, int64(at)))
		case 1:
			what = fmt.Sprintf("0xffffffff at %d", at)
			overwrite(t, path, int64(at), binary.LittleEndian.AppendUint32(nil, 0xffffffff)...)
		default:
			what = fmt.Sprintf("flip at %d", at)
			overwrite(t, path, int64(at), b[at]^(1<<rnd.IntN(8)))
		}
		func() {
			defer func() {
				if t.Failed() {
					t.Logf("round %d: %s: %s", i, file, what)
				}
			}()
			rd, err := OpenReader(mine)
			must(t, err)
			for id, end := range ends {
				damaged(t, rd.Read, id, end)
			}
			must(t, rd.Close())
			s, err := Open(Config{Dir: mine, MaxSize: 64 << 20, MinFree: -1})
			must(t, err)
			for id, end := range ends {
				damaged(t, s.Read, id, end)
			}
			for _, e := range s.epochs {
				e.unload()
			}
			must(t, s.Close())
		}()
	}
}

// damaged is judge without knowing what is lost: all numbers, in order, right or in a hole.
func damaged(t *testing.T, read func(string, int64) (Batch, error), id string, end int64) {
	t.Helper()
	got, holes, err := walk(read, id, 0, -1)
	must(t, err)
	var sum int64
	for _, r := range append(got, holes...) {
		sum += r.Next - r.First
	}
	if sum != end {
		t.Fatalf("%s: have %v, holes %v, want all up to %d", id, got, holes, end)
	}
}
