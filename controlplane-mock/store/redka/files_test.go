package redka

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func openTest(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
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

// An acknowledged log batch must survive a power cut, whichever connection wrote it.
func TestEveryConnectionIsDurable(t *testing.T) {
	s := openTest(t, t.TempDir())
	for _, db := range []*database{&s.stateDB, &s.logsDB} {
		for _, pool := range []struct {
			name  string
			db    *sql.DB
			conns int
		}{{"writer", db.rw, 1}, {"readers", db.ro, readers}} {
			if got := pool.db.Stats().MaxOpenConnections; got != pool.conns {
				t.Errorf("%s %s: at most %d connections, want %d", db.path, pool.name, got, pool.conns)
			}
			for i := range pool.conns {
				// All of them at once, so that each is another one.
				conn, err := pool.db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				want := map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "5000", "foreign_keys": "1"}
				if pool.name == "writer" {
					want["wal_autocheckpoint"] = strconv.Itoa(db.checkpoint / pageSize)
					want["page_size"] = strconv.Itoa(pageSize)
				}
				for pragma, value := range want {
					var got string
					if err := conn.QueryRowContext(t.Context(), "pragma "+pragma).Scan(&got); err != nil {
						t.Fatal(err)
					}
					if got != value {
						t.Errorf("%s %s %d: %s is %s, want %s", db.path, pool.name, i, pragma, got, value)
					}
				}
			}
		}
	}
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "data # 100%?")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir)
	if _, err := s.ServerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]os.FileMode{
		"LOCK": 0o600, "state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600, "logs.db": 0o600, "logs.db-wal": 0o600, "logs.db-shm": 0o600,
		"bodies": 0o700 | os.ModeDir,
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want[e.Name()] {
			t.Errorf("%s has mode %v, want %v", e.Name(), info.Mode(), want[e.Name()])
		}
		delete(want, e.Name())
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("the directory has mode %v, want 0700", got)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	_, err := Open(dir)
	if want := fmt.Sprintf("%s is in use by process %d (redka.test)", dir, os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got error %v, want one with %q", err, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openTest(t, dir)
}

func TestOpenFailsCleanly(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "logs.db"), []byte(strings.Repeat("this is no database ", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "logs.db") {
		t.Fatalf("got %v, want an error that names logs.db", err)
	}
	if err := os.Remove(filepath.Join(dir, "logs.db")); err != nil {
		t.Fatal(err)
	}
	openTest(t, dir) // what the failed start held is free
}

// A database that fails says so, changes nothing, and is opened again when it can be.
func TestDatabaseAwayAndBack(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	ctx := t.Context()
	id, err := s.ServerID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stateDB.rw.Close(); err != nil { // every statement fails from here on
		t.Fatal(err)
	}
	path := filepath.Join(dir, "state.db")
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil { // and it can't be opened again
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Ping(ctx); err == nil {
			t.Fatal("Ping: got nil while the database was away, want an error")
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	if again, err := s.ServerID(context.WithoutCancel(ctx)); err != nil || again != id {
		t.Fatalf("got %q, %v, want %q", again, err, id)
	}
}
