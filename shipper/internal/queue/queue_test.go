package queue

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// sample fills a queue: three attempts, each with sealed batches and with bytes that aren't sealed.
type sample struct {
	path string
	want []sampleAttempt
}

type sampleAttempt struct {
	id      Ident
	batches [][]byte // batch i has the numbers 10i to 10i+9
	raw     [Streams][]byte
}

const sampleSize = 1 << 20

func fill(t testing.TB, batches, size int) sample {
	t.Helper()
	s := sample{path: filepath.Join(t.TempDir(), "queue")}
	q, found, err := Open(s.path, Options{Size: sampleSize})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Attempts) != 0 {
		t.Fatalf("a new queue holds %d attempts", len(found.Attempts))
	}
	for i := range 3 {
		want := sampleAttempt{id: Ident{JobID: fmt.Sprintf("job%d", i), Attempt: int64(i + 1), Token: "secret", MaxLine: 4096}}
		a, err := q.Begin(want.id)
		if err != nil {
			t.Fatal(err)
		}
		var used [Streams]int64
		for n := range batches {
			put(t, a, n%2, bytes.Repeat([]byte{byte(n)}, 100))
			used[n%2] += 100
			data := bytes.Repeat([]byte{byte('a' + n), byte(i)}, size/2+n)
			if err := a.Append(Batch{First: int64(10 * n), Count: 10, Encoding: 3, Oldest: 1}, data, used, uint8(n%4)); err != nil {
				t.Fatal(err)
			}
			want.batches = append(want.batches, data)
		}
		for stream := range want.raw {
			for n := range 5 {
				p := fmt.Appendf(nil, "attempt %d stream %d read %d\n", i, stream, n)
				put(t, a, stream, p)
				want.raw[stream] = append(want.raw[stream], p...)
			}
		}
		s.want = append(s.want, want)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// begun is a queue with one attempt in it, of which nothing was read yet.
func begun(t testing.TB) (path string, q *File, a *Attempt) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "queue")
	q, _, err := Open(path, Options{Size: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if a, err = q.Begin(Ident{JobID: "j", Attempt: 1, MaxLine: 4096}); err != nil {
		t.Fatal(err)
	}
	return path, q, a
}

func put(t testing.TB, a *Attempt, stream int, p []byte) {
	t.Helper()
	r := a.Raw(stream)
	if room, err := r.Space(false); err != nil || room < len(p) {
		t.Fatalf("room for %d of %d bytes: %v", room, len(p), err)
	}
	copy(r.Intend(len(p), 1), p)
	r.Commit(len(p))
}

func content(a *Attempt, stream int) (p []byte, lost int) {
	for _, r := range a.Raw(stream).Runs(nil) {
		skip := max(0, a.Raw(stream).Used()-r.Pos)
		p = append(p, r.Data[min(int(skip), len(r.Data)):]...)
		if r.Lost {
			lost++
		}
	}
	return p, lost
}

func TestReopenedQueueHoldsEverything(t *testing.T) {
	s := fill(t, 4, 9000)
	for range 3 { // reopening changes nothing
		q, found, err := Open(s.path, Options{Size: sampleSize})
		if err != nil {
			t.Fatal(err)
		}
		if found.Damage != 0 || len(found.Attempts) != len(s.want) {
			t.Fatalf("found %d attempts, %d damaged places, want %d and 0", len(found.Attempts), found.Damage, len(s.want))
		}
		for i, a := range found.Attempts {
			want := s.want[i]
			if a.Ident != want.id || a.Next() != 40 || a.Parts() != 3 {
				t.Errorf("attempt %+v, next %d, parts %d; want %+v, 40, 3", a.Ident, a.Next(), a.Parts(), want.id)
			}
			for n, b := range a.Batches() {
				parts, ok := a.Data(b)
				if got := bytes.Join(parts, nil); !ok || b.First != int64(10*n) || !bytes.Equal(got, want.batches[n]) {
					t.Errorf("batch %d: first %d, %d bytes, want %d", n, b.First, len(got), len(want.batches[n]))
				}
			}
			for stream := range want.raw {
				if got, lost := content(a, stream); lost != 0 || !bytes.Equal(got, want.raw[stream]) {
					t.Errorf("stream %d holds %q, want %q", stream, got, want.raw[stream])
				}
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReleasedBatchesGiveTheirPagesBack(t *testing.T) {
	s := fill(t, 4, 9000)
	q, found, err := Open(s.path, Options{Size: sampleSize})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range found.Attempts {
		if n := a.Release(25); n != 20 {
			t.Errorf("released %d records, want 20", n)
		}
		if b := a.Batches(); len(b) != 2 || b[0].First != 20 {
			t.Errorf("holds %+v, want two batches from 20 on", b)
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	q, found, err = Open(s.path, Options{Size: sampleSize})
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range found.Attempts {
		if b := a.Batches(); len(b) != 2 || b[0].First != 20 {
			t.Errorf("after reopening it holds %+v, want two batches from 20 on", b)
		} else if parts, _ := a.Data(b[1]); !bytes.Equal(bytes.Join(parts, nil), s.want[i].batches[3]) {
			t.Error("the last batch has changed")
		}
		a.End()
	}
	if q.Used() != 0 || len(q.slots) != q.lay.slots {
		t.Errorf("%d bytes and %d slots in use, want none", q.Used(), q.lay.slots-len(q.slots))
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if _, found, err = Open(s.path, Options{Size: 2 * sampleSize}); err != nil || len(found.Attempts) != 0 {
		t.Errorf("an empty queue of another size: %d attempts, %v", len(found.Attempts), err)
	}
}

// What a kill leaves between read(2) and its commit.
func TestIntentIsARunWhenItsBytesAreThere(t *testing.T) {
	for _, n := range []int{1, 2, 15, 16, 17, 1000, 4000, 9000} {
		for _, read := range []int{0, n} {
			path, q, a := begun(t)
			put(t, a, 0, []byte("before"))
			if _, err := a.Raw(0).Space(false); err != nil {
				t.Fatal(err)
			}
			space := a.Raw(0).Intend(n, 7)
			clear(space[:read]) // what was read are NULs, the hardest case
			want := append([]byte("before"), make([]byte, read)...)
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				q, found, err := Open(path, Options{Size: 8 << 20})
				if err != nil {
					t.Fatal(err)
				}
				if got, _ := content(found.Attempts[0], 0); !bytes.Equal(got, want) {
					t.Errorf("intent of %d, %d read: %d bytes found, want %d", n, read, len(got), len(want))
				}
				if err := q.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// What a kill leaves of a copy of our own, whose parts may be stored in any order: nothing.
func TestCopyThatWasNotFinishedIsNothing(t *testing.T) {
	path, q, a := begun(t)
	raw := a.Raw(0)
	if _, err := raw.Space(false); err != nil {
		t.Fatal(err)
	}
	raw.Put([]byte("before"), 1)
	if _, err := raw.Space(false); err != nil {
		t.Fatal(err)
	}
	_, to := raw.prepare(1000, 1)
	copy(to[32:], bytes.Repeat([]byte("x"), 1000)) // memmove stores what isn't aligned last
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	q, found, err := Open(path, Options{Size: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if got, lost := content(found.Attempts[0], 0); string(got) != "before" || lost != 0 || found.Damage != 0 {
		t.Errorf("found %q, %d lost, damage %d; want what was there before", got, lost, found.Damage)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}

// A copy that the kernel broke off at a page's end.
func TestIntentThatWasReadInPart(t *testing.T) {
	lay := newLayout(8 << 20)
	for i := range lay.mark {
		lay.mark[i] = byte(0xF0 + i)
	}
	page := make([]byte, lay.pageSize)
	const off, n = 3000, 10000
	lay.markSpace(page, off, n)
	clear(page[off:8192])
	if got := lay.wasRead(page, off, n); got != 8192-off {
		t.Errorf("%d bytes, want %d: all up to the page's end", got, 8192-off)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	s := fill(t, 1, 100)
	q, _, err := Open(s.path, Options{Size: sampleSize})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, _, err := Open(s.path, Options{Size: sampleSize}); err == nil {
		t.Error("a second process got the queue")
	}
}

func TestInvariant6FairShare(t *testing.T) {
	q, _, err := Open(filepath.Join(t.TempDir(), "queue"), Options{Size: 4 << 20, Reserve: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	greedy := func(name string) int64 {
		a, err := q.Begin(Ident{JobID: name, Attempt: 1, MaxLine: 4096})
		if err != nil {
			t.Fatal(err)
		}
		for {
			room, err := a.Raw(0).Space(false)
			if err != nil {
				return a.Bytes()
			}
			a.Raw(0).Intend(room, 1)
			a.Raw(0).Commit(room)
		}
	}
	first := greedy("a")
	if part := float64(first) / float64(q.Size()); part < 0.7 || part > 0.85 {
		t.Errorf("a single noisy attempt got %.2f of the queue, want about three quarters", part)
	}
	for i := range 5 {
		if got := greedy(fmt.Sprint("b", i)); got < int64(2*q.lay.pageSize) {
			t.Errorf("newcomer %d got %d bytes: starved", i, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	s := fill(f, 3, 500)
	whole, err := os.ReadFile(s.path)
	if err != nil {
		f.Fatal(err)
	}
	lay := newLayout(sampleSize)
	f.Add(uint32(0), []byte{0xff}, false)
	f.Add(uint32(lay.slotAt(0)), []byte{1, 2, 3, 4}, true)
	f.Add(uint32(lay.pageAt(0)+pageHead), []byte{0xff, 0xff, 0xff, 0xff, 0xff}, true)
	f.Fuzz(func(_ *testing.T, at uint32, p []byte, cut bool) {
		b := bytes.Clone(whole)
		i := int(at) % len(b)
		n := copy(b[i:], p)
		if cut {
			b = b[:i+n]
		}
		lay, err := parseLayout(b)
		if err != nil {
			return
		}
		parse(b, int64(len(b)), lay, true)
	})
}

// A read that stopped at a memory page's end is made a run at the next start. Killed before that becomes true, the start after it
// finds the same bytes, and none of those that were never read.
func TestC1KilledWhileAnIntentBecomesARun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	o := Options{Size: 16 << 20} // its pages are of several memory pages
	q, _, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	a, err := q.Begin(Ident{JobID: "job", Attempt: 1, MaxLine: 4096})
	if err != nil {
		t.Fatal(err)
	}
	r := a.Raw(0)
	if _, err := r.Space(false); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("line\n"), (osPage-pageHead-runHead)/5)
	copy(r.Intend(len(want)+10, 1), want)
	q.commitRun(q.page(r.into), a.gen, r.off, 0, len(want))
	store(q.page(r.into)[r.off:], runIntent) // the last store wasn't made
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	q, found, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if got, lost := content(found.Attempts[0], 0); lost != 0 || !bytes.Equal(got, want) {
		t.Errorf("%d bytes are there, %d lost, ending in %q; want %d bytes", len(got), lost, got[max(0, len(got)-12):], len(want))
	}
}
