package redka_test

import (
	"testing"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/redka"
	"agentd/controlplane-mock/store/storetest"
)

// open opens the store in dir and closes it at the test's end.
func open(t testing.TB, dir string) *redka.Store {
	t.Helper()
	s, err := redka.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, target())
}

func target() storetest.Target {
	dirs := map[store.Store]string{}
	return storetest.Target{
		Open: func(t *testing.T) store.Store {
			dir := t.TempDir()
			s := open(t, dir)
			dirs[s] = dir
			return s
		},
		Reopen: func(t *testing.T, s store.Store) store.Store {
			t.Helper()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			again := open(t, dirs[s])
			dirs[again] = dirs[s]
			return again
		},
	}
}

func TestModel(t *testing.T) { storetest.RunModel(t, target()) }

func TestLinearizable(t *testing.T) { storetest.RunLinearizable(t, target()) }
