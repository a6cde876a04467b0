package queue

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Every row damages a queue; it opens all the same, and what is not damaged is there.
func TestC2C4DamagedQueue(t *testing.T) {
	over := func(at int, p ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], p); return b }
	}
	lay := newLayout(sampleSize)
	first := int(lay.pageAt(0))
	for _, c := range []struct {
		name    string
		corrupt func([]byte) []byte
		intact  int // attempts
		renamed bool
	}{
		{"cut to zero", func([]byte) []byte { return nil }, 0, false},
		{"first superblock", over(0, make([]byte, superSize)...), 3, false},
		{"both superblocks", over(0, make([]byte, supersSize)...), 0, true},
		{"size made huge", over(8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), 3, false},
		{"slot's job", over(int(lay.slotAt(0))+40, 'X'), 2, false},
		{"slot's lengths", over(int(lay.slotAt(0))+32, 0xff, 0xff, 0xff, 0xff), 2, false},
		{"slot's live word", over(int(lay.slotAt(0)), 0xff), 3, false},
		{"newer state", over(int(lay.slotAt(1))+stateAt, 0xff, 0xff, 0xff, 0xff), 3, false},
		{"cut by a byte", func(b []byte) []byte { return b[:len(b)-1] }, 3, false},
		{"cut in half", func(b []byte) []byte { return b[:len(b)/2] }, 3, false},
		{"cut to the superblocks", func(b []byte) []byte { return b[:supersSize] }, 0, false},
		{"page's kind", over(first, 0xff), 3, false},
		{"something else", func([]byte) []byte { return []byte("hello") }, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := fill(t, 4, 900)
			b, err := os.ReadFile(s.path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.path, c.corrupt(b), 0o600); err != nil {
				t.Fatal(err)
			}
			q, found, err := Open(s.path, Options{Size: sampleSize})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if len(found.Attempts) != c.intact || (found.Renamed != "") != c.renamed {
				t.Errorf("%d attempts, renamed %q; want %d, %v", len(found.Attempts), found.Renamed, c.intact, c.renamed)
			}
			s.check(t, found)
			works(t, q)
		})
	}
}

// check says that nothing wrong is found: every batch is one that was put in, at its numbers, every run is a stretch
// of what was read, and where something is missing, that is said.
func (s sample) check(t testing.TB, found Found) {
	t.Helper()
	for _, a := range found.Attempts {
		i := slices.IndexFunc(s.want, func(w sampleAttempt) bool { return w.id == a.Ident })
		if i < 0 {
			t.Fatalf("found an attempt that never was: %+v", a.Ident)
		}
		end := int64(0)
		for _, b := range a.Batches() {
			if b.First < end || b.Count != 10 || b.First%10 != 0 {
				t.Fatalf("found a batch that never was: %+v", b)
			}
			end = b.End()
			if parts, ok := a.Data(b); ok && !bytes.Equal(bytes.Join(parts, nil), s.want[i].batches[b.First/10]) {
				t.Fatalf("batch %d has changed", b.First)
			}
		}
		for stream := range s.want[i].raw {
			for _, r := range a.Raw(stream).Runs(nil) {
				if len(r.Data) != 100 && !bytes.Contains(s.want[i].raw[stream], r.Data) {
					t.Fatalf("stream %d: found a run that never was: %q", stream, r.Data)
				}
			}
		}
		missing, lost := 0, 0
		for stream := range s.want[i].raw {
			got, n := content(a, stream)
			missing, lost = missing+len(s.want[i].raw[stream])-len(got), lost+n
		}
		if missing > 0 && lost == 0 {
			t.Fatalf("%s: %d bytes are missing, and nothing says so", a.JobID, missing)
		}
	}
}

// works says that the queue can be used.
func works(t testing.TB, q *File) {
	t.Helper()
	a, err := q.Begin(Ident{JobID: "new", Attempt: 1, MaxLine: 4096})
	if err != nil {
		t.Fatal(err)
	}
	put(t, a, 0, []byte("x\n"))
	if err := a.Append(Batch{First: 0, Count: 1}, []byte("data"), [Streams]int64{2}, 0); err != nil {
		t.Fatal(err)
	}
	a.End()
}

// C3: one byte flipped, anywhere: never a crash, never a wrong byte, never more than what it lay in.
func TestC3FlippedBytes(t *testing.T) {
	flips := 200
	if os.Getenv("AGENTD_SOAK") == "1" {
		flips = 5000
	}
	s := fill(t, 4, 9000)
	whole, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	used := len(whole)
	for used > 0 && whole[used-1] == 0 {
		used--
	}
	random := rand.New(rand.NewPCG(7, 8))
	damages := 0
	for range flips {
		at, with := random.IntN(used), byte(1+random.IntN(255))
		b := bytes.Clone(whole)
		b[at] ^= with
		if err := os.WriteFile(s.path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		q, found, err := Open(s.path, Options{Size: sampleSize})
		if err != nil {
			t.Fatalf("byte %d ^ %#x: %v", at, with, err)
		}
		s.check(t, found)
		if found.Damage > 0 {
			kept, err := os.ReadFile(found.Kept)
			if err != nil || len(kept) != len(b) || kept[at] != b[at] {
				t.Fatalf("byte %d ^ %#x: the damaged place wasn't kept: %q, %v, %v", at, with, found.Kept, found.KeptErr, err)
			}
			damages++
			if err := os.Remove(found.Kept); err != nil {
				t.Fatal(err)
			}
		}
		batches := 0
		for _, a := range found.Attempts {
			for _, b := range a.Batches() {
				if _, ok := a.Data(b); ok {
					batches++
				}
			}
		}
		// A page holds at most five batches or parts of them; a slot, one attempt.
		if len(found.Attempts) < 2 || batches < 12-5 {
			t.Fatalf("byte %d ^ %#x: only %d attempts and %d batches are left", at, with, len(found.Attempts), batches)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if damages < flips/4 {
		t.Errorf("only %d of %d flips were noticed", damages, flips)
	}
}

// Damage that can't be got rid of yet is kept once; what is whole stays where it is.
func TestDamagedPagesAreKeptOnce(t *testing.T) {
	s := fill(t, 4, 900)
	b, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, s.want[0].batches[2]) + 5
	b[at] ^= 1
	if err := os.WriteFile(s.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		q, found, err := Open(s.path, Options{Size: sampleSize})
		if err != nil {
			t.Fatal(err)
		}
		if found.Damage != 1 || found.Kept == "" || found.KeptErr != nil {
			t.Errorf("found %+v, want one damaged place, kept", found)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := filepath.Glob(s.path + ".damaged-*")
	if err != nil || len(kept) != 1 {
		t.Fatalf("%v are kept, %v; want one copy", kept, err)
	}
	in, err := Inspect(kept[0]) // it is a queue file, and can be looked at as one
	if err != nil || len(in) != 3 {
		t.Fatalf("the copy shows %d attempts, %v; want 3", len(in), err)
	}
	var info unix.Stat_t
	if err := unix.Stat(kept[0], &info); err != nil || info.Blocks*512 > sampleSize/8 {
		t.Errorf("the copy takes %d bytes, %v; want the damaged page, slots and superblocks", info.Blocks*512, err)
	}
}

// Whatever page it is whose header can't be read, or behind which the file was cut, what is missing is owned up to.
func TestNoHoleAtAnEndIsSilent(t *testing.T) {
	s := fill(t, 4, 9000)
	whole, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	lay := newLayout(sampleSize)
	for i := range lay.pages {
		at := lay.pageAt(i)
		if load(whole[at:]) == kindFree {
			continue
		}
		flipped := bytes.Clone(whole)
		flipped[at+16] ^= 1
		for _, b := range [][]byte{flipped, whole[:at], whole[:at+100], whole[:at+int64(lay.pageSize)]} {
			if err := os.WriteFile(s.path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			q, found, err := Open(s.path, Options{Size: sampleSize})
			if err != nil {
				t.Fatal(err)
			}
			if found.Damage == 0 {
				t.Errorf("page %d: damage wasn't noticed", i)
			}
			s.check(t, found)
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Numbers that were given out for nothing stand in no batch, so that a flipped byte in the newer state mustn't take them back: what is
// read after them would get numbers that the server has already, and passes over.
func TestSkippedNumbersOutliveAFlippedByte(t *testing.T) {
	for _, give := range []struct {
		name string
		out  func(*Attempt)
	}{
		{"skipped", func(a *Attempt) { a.Skip(20, [Streams]int64{100}, 0) }},
		{"skipped to", func(a *Attempt) { a.SkipTo(20) }},
	} {
		for state := range 2 {
			path := filepath.Join(t.TempDir(), "queue")
			q, _, err := Open(path, Options{Size: sampleSize})
			if err != nil {
				t.Fatal(err)
			}
			a, err := q.Begin(Ident{JobID: "job", Attempt: 1, MaxLine: 4096})
			if err != nil {
				t.Fatal(err)
			}
			put(t, a, 0, bytes.Repeat([]byte{'x'}, 100))
			give.out(a)
			put(t, a, 0, []byte("line\n"))
			q.slot(a.slot)[stateAt+state*stateSize+20] ^= 1
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			q, found, err := Open(path, Options{Size: sampleSize})
			if err != nil {
				t.Fatal(err)
			}
			if len(found.Attempts) != 1 || found.Attempts[0].Next() != 20 {
				t.Errorf("%s, state %d flipped: next is %d, want 20", give.name, state, found.Attempts[0].Next())
			}
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
