package redka

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
)

const inflightTTL = 10 * time.Second

// block queues a change that holds its group up until the returned function is called.
func block(t *testing.T, s *Store) (release func()) {
	gate := make(chan struct{})
	go func() {
		if err := s.state.apply(t.Context(), 0, func(*redkadb.Tx) error { <-gate; return nil }); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
	return func() { close(gate) }
}

// dueJob is a running job whose lease has run out and that nobody has reaped yet.
func dueJob(t *testing.T, s *Store) store.Ref {
	t.Helper()
	r := holdJob(t, s, "job")
	if _, err := s.Renew(t.Context(), r, inflightTTL, store.Beat{}); err != nil {
		t.Fatal(err)
	}
	<-time.After(2 * inflightTTL)
	return r
}

type reaped struct {
	n   int
	err error
}

func reapBehind(t *testing.T, s *Store) <-chan reaped {
	out := make(chan reaped, 1)
	go func() {
		n, err := s.Reap(t.Context(), inflightTTL)
		out <- reaped{n, err}
	}()
	synctest.Wait() // it has looked, and waits for its turn
	return out
}

// A renewal that is answered after the reaper looked and before it acts holds.
func TestRenewalBeforeTheReaperActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, t.TempDir())
		r := dueJob(t, s)
		release := block(t, s)
		result := reapBehind(t, s)
		if _, err := s.Renew(t.Context(), r, inflightTTL, store.Beat{}); err != nil {
			t.Fatal(err)
		}
		release()
		if got := <-result; got != (reaped{0, nil}) {
			t.Errorf("reaped %d, %v, want 0", got.n, got.err)
		}
		if j, err := s.Job(t.Context(), "job"); err != nil || j.Status != store.Running {
			t.Errorf("the job is %s, %v, want it running", j.Status, err)
		}
	})
}

// A renewal that comes once the reaper has acted isn't answered before its commit, and then refused: an answered
// renewal is never undone.
func TestRenewalWhileTheReaperCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, t.TempDir())
		r := dueJob(t, s)
		first := block(t, s)
		result := reapBehind(t, s)
		second := block(t, s) // in the reaper's group, behind it: keeps the commit back
		first()
		synctest.Wait()
		renewed := make(chan error, 1)
		go func() {
			_, err := s.Renew(t.Context(), r, inflightTTL, store.Beat{})
			renewed <- err
		}()
		synctest.Wait()
		select {
		case err := <-renewed:
			t.Fatalf("the renewal was answered with %v before the reaper had committed", err)
		default:
		}
		second()
		if got := <-result; got != (reaped{1, nil}) {
			t.Errorf("reaped %d, %v, want 1", got.n, got.err)
		}
		if err := <-renewed; !errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("the renewal got %v, want a lost lease", err)
		}
	})
}
