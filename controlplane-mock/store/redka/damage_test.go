package redka

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/controlplane-mock/store"
)

// holdJob answers the claim to an offered job.
func holdJob(t testing.TB, s *Store, id string) store.Ref {
	t.Helper()
	if _, _, err := s.Submit(t.Context(), store.NewJob{ID: id, Type: "x", Payload: []byte("1"), MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Lease(t.Context(), store.LeaseParams{AgentID: "a", Types: []string{"x"}, PollID: id, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return store.Ref{JobID: id, Attempt: 1, AgentID: "a"}
}

// Damaged or missing, a body in a segment is an error and never a wrong line; what lies beside it is still read.
func TestDamagedSegment(t *testing.T) {
	s := openTest(t, t.TempDir())
	r := holdJob(t, s, "job")
	body := func(n int) []byte { return bytes.Repeat([]byte{byte('a' + n)}, inline+1) }
	for n := range 3 {
		if _, err := s.AppendLog(t.Context(), r, store.LogBatch{First: int64(n), Count: 1, Encoding: "identity", Body: body(n)}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(n int) ([]byte, error) {
		b, err := s.ReadLog(t.Context(), "job", 1, int64(n), 1)
		if err != nil {
			return nil, err
		}
		return b[0].Body, nil
	}
	path := s.segments.path(1)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		corrupt func() []byte
		bad     []int
	}{
		{"untouched", func() []byte { return raw }, nil},
		{"a byte flipped in the second", func() []byte {
			b := bytes.Clone(raw)
			b[inline+5] ^= 1
			return b
		}, []int{1}},
		{"cut in the third", func() []byte { return raw[:len(raw)-1] }, []int{2}},
		{"cut to zero", func() []byte { return nil }, []int{0, 1, 2}},
	} {
		if err := os.WriteFile(path, c.corrupt(), 0o600); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			got, err := read(n)
			bad := slices.Contains(c.bad, n)
			if bad && (err == nil || !strings.Contains(err.Error(), "job attempt")) {
				t.Errorf("%s: batch %d: got %d bytes, error %v, want an error that says where", c.name, n, len(got), err)
			}
			if !bad && (err != nil || !bytes.Equal(got, body(n))) {
				t.Errorf("%s: batch %d: got %d bytes, error %v, want it whole", c.name, n, len(got), err)
			}
		}
	}
}

// A segment that can't be written fails the appends that need it and nothing else; the next one gets a new segment.
func TestSegmentWriteFails(t *testing.T) {
	s := openTest(t, t.TempDir())
	r := holdJob(t, s, "job")
	big := store.LogBatch{Count: 1, Encoding: "identity", Body: make([]byte, inline+1)}
	if _, err := s.AppendLog(t.Context(), r, big); err != nil {
		t.Fatal(err)
	}
	if err := s.segments.f.Close(); err != nil { // writes fail from here on
		t.Fatal(err)
	}
	big.First = 1
	if _, err := s.AppendLog(t.Context(), r, big); err == nil {
		t.Fatal("got nil for a body that could not be written, want an error")
	}
	if next, err := s.LogNext(t.Context(), r); err != nil || next != 1 {
		t.Fatalf("got next %d, %v, want 1", next, err)
	}
	if next, err := s.AppendLog(t.Context(), r, big); err != nil || next != 2 {
		t.Fatalf("got next %d, %v, want 2", next, err)
	}
	if got := s.segments.number; got != 2 {
		t.Errorf("the body is in segment %d, want a new one, 2", got)
	}
}

// A change that panics (a Trim callback, say) fails its group and leaves the store in use.
func TestPanicInAChange(t *testing.T) {
	s := openTest(t, t.TempDir())
	r := holdJob(t, s, "job")
	b := store.LogBatch{Count: 2, Encoding: "identity", Body: []byte("x")}
	if _, err := s.AppendLog(t.Context(), r, b); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		b.First, b.Trim = 1, func(int64) (store.LogBatch, error) { panic("ours") }
		_, _ = s.AppendLog(t.Context(), r, b)
	}()
	b.First = 2
	if next, err := s.AppendLog(t.Context(), r, b); err != nil || next != 4 {
		t.Fatalf("got next %d, %v, want 4", next, err)
	}
}

// 10,000 settled jobs slow nothing down: a lease looks at what is pending, a start at what isn't settled.
func TestSettledJobsCostNothing(t *testing.T) {
	s := openTest(t, t.TempDir())
	for _, id := range []string{"a", "b", "c"} {
		holdJob(t, s, id)
		if _, err := s.Cancel(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
	holdJob(t, s, "live")
	if got := len(s.mem.jobs); got != 1 {
		t.Errorf("%d jobs are held in memory, want 1", got)
	}
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	if got := len(s.mem.jobs); got != 1 {
		t.Errorf("%d jobs are held in memory after a start, want 1", got)
	}
	if len(s.mem.pending) != 0 || len(s.mem.offers) != 1 || len(s.mem.leases) != 1 {
		t.Errorf("got %d kinds of pending jobs, %d offers, %d leases, want 0, 1, 1", len(s.mem.pending), len(s.mem.offers), len(s.mem.leases))
	}
}
