package systemd_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentd/internal/testmain"
	"agentd/systemd"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// manager is the other end of NOTIFY_SOCKET.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func listen(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return &manager{t, conn}
}

// next returns the next message's assignments.
func (m *manager) next() []string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		m.t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := m.conn.Read(b)
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.Split(string(b[:n]), "\n")
}

// until reads messages until one carries want.
func (m *manager) until(want string) []string {
	m.t.Helper()
	for range 1000 {
		msg := m.next()
		for _, line := range msg {
			if strings.HasPrefix(line, want) {
				return msg
			}
		}
	}
	m.t.Fatalf("no message with %q among 1000", want)
	return nil
}

func run(t *testing.T, n *systemd.Notifier, stopping chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, stopping) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestReadyCarriesTheStatusOnOneLine(t *testing.T) {
	m := listen(t)
	n, err := systemd.New(systemd.Config{Status: func() string { return "polling;\n2 jobs" }})
	if err != nil {
		t.Fatal(err)
	}
	n.Ready()
	got := strings.Join(m.next(), "|")
	if want := "READY=1|STATUS=polling; 2 jobs"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestWatchdogIsFedOnlyByLiveLoops(t *testing.T) {
	m := listen(t)
	t.Setenv("WATCHDOG_USEC", "30000") // 30 ms: a ping each 10 ms
	var hung atomic.Bool
	n, err := systemd.New(systemd.Config{Alive: func() error {
		if hung.Load() {
			return errors.New("poll loop: no progress for 1m0s")
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, n, nil)
	m.until("WATCHDOG=1")
	hung.Store(true)
	m.until("STATUS=not alive: poll loop: no progress for 1m0s")
	for range 5 { // from here on not one ping
		if msg := strings.Join(m.next(), "|"); strings.Contains(msg, "WATCHDOG") {
			t.Fatalf("fed the watchdog while a loop hung: %s", msg)
		}
	}
	hung.Store(false)
	m.until("WATCHDOG=1")
}

func TestStoppingAsksForTimeWhileItDrains(t *testing.T) {
	m := listen(t)
	t.Setenv("WATCHDOG_USEC", "30000")
	n, err := systemd.New(systemd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	stopping := make(chan struct{})
	run(t, n, stopping)
	m.until("WATCHDOG=1")
	close(stopping)
	m.until("STOPPING=1")
	got := strings.Join(m.until("EXTEND_TIMEOUT_USEC="), "|")
	if want := "EXTEND_TIMEOUT_USEC=30000000|STATUS=|WATCHDOG=1"; got != want {
		t.Fatalf("got %q, want %q: it must be watched while it drains, too", got, want)
	}
}

func TestReloadingIsStamped(t *testing.T) {
	m := listen(t)
	n, err := systemd.New(systemd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	n.Reloading()
	msg := m.next()
	if len(msg) != 2 || msg[0] != "RELOADING=1" || !strings.HasPrefix(msg[1], "MONOTONIC_USEC=") || len(msg[1]) < len("MONOTONIC_USEC=1000000") {
		t.Fatalf("got %q", msg)
	}
}

func TestWithoutSystemdNothingFails(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n, err := systemd.New(systemd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	n.Ready()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Run(ctx, nil); err != nil {
		t.Fatalf("Run without systemd: %v", err)
	}
}

func TestBadWatchdogIsNamed(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "soon")
	_, err := systemd.New(systemd.Config{})
	if err == nil || !strings.Contains(err.Error(), "WATCHDOG_USEC") {
		t.Fatalf("got %v, want an error that names WATCHDOG_USEC", err)
	}
}
