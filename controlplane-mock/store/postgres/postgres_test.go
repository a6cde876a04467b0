package postgres_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
	"agentd/controlplane-mock/store/storetest"
	"agentd/internal/testmain"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The suite mostly waits for leases to run out in real time: as many tests at once as a pool of
	// connections each allows, not as many as there are processors.
	if err := flag.Set("test.parallel", "60"); err != nil {
		panic(err)
	}
	testmain.Run(m)
}

// TestStore runs everything on one private cluster, each test in a schema of its own.
func TestStore(t *testing.T) {
	c := startCluster(t)
	t.Run("suite", func(t *testing.T) { storetest.Run(t, c.target()) })
	t.Run("linearizable", func(t *testing.T) { storetest.RunLinearizable(t, c.target()) })
	t.Run("instances", func(t *testing.T) { testInstances(t, c) })
}

// cluster is a PostgreSQL of our own that listens on a unix socket only.
type cluster struct {
	socket  string // its directory
	schemas atomic.Int64
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		t.Fatalf("no PostgreSQL in /usr/lib/postgresql (%v): install the package postgresql", err)
	}
	bin := slices.Max(bins)
	dir, err := os.MkdirTemp("", "agentd-pg") //nolint:usetesting // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	run := func(name string, arg ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, name), arg...)
		cmd.SysProcAttr, cmd.Dir = as, dir
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, &out)
		}
	}
	run("initdb", "-D", data, "-U", "agentd", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
	// What is tested here is not the disk: crash safety is PostgreSQL's own.
	opts := fmt.Sprintf("-c listen_addresses='' -c unix_socket_directories='%s' -c fsync=off -c max_connections=300", dir)
	run("pg_ctl", "-D", data, "-w", "-l", filepath.Join(dir, "log"), "-o", opts, "start")
	t.Cleanup(func() { run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop") })
	return &cluster{socket: dir}
}

func (c *cluster) url(schema string) string {
	return fmt.Sprintf("postgres:///postgres?host=%s&user=agentd&search_path=%s", c.socket, schema)
}

// schema makes a schema and answers its URL.
func (c *cluster) schema(t testing.TB) string {
	t.Helper()
	name := fmt.Sprint("test_", c.schemas.Add(1))
	url := c.url(name)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "create schema "+name); err != nil {
		t.Fatal(err)
	}
	return url + "&pool_max_conns=4"
}

func open(t testing.TB, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (c *cluster) target() storetest.Target {
	type opened struct {
		*postgres.Store
		url string
	}
	return storetest.Target{
		RealTime: true,
		Open: func(t *testing.T) store.Store {
			url := c.schema(t)
			return &opened{open(t, url), url}
		},
		Reopen: func(t *testing.T, s store.Store) store.Store {
			t.Helper()
			old := s.(*opened)
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			return &opened{open(t, old.url), old.url}
		},
	}
}

// testInstances opens many at once on an empty schema: one migrates, and all agree who they are.
func testInstances(t *testing.T, c *cluster) {
	url := c.schema(t)
	const n = 6
	ids := make(chan string, n)
	for range n {
		go func() {
			s, err := postgres.Open(t.Context(), postgres.Config{URL: url})
			if err != nil {
				ids <- err.Error()
				return
			}
			defer s.Close()
			id, err := s.ServerID(t.Context())
			if err != nil {
				id = err.Error()
			}
			ids <- id
		}()
	}
	want := <-ids
	for range n - 1 {
		if got := <-ids; got != want {
			t.Errorf("two instances on one database are %q and %q", got, want)
		}
	}
}
