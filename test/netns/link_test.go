package netns_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"agentd/internal/testmain"
	"agentd/test/netns"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A connection that is swallowed hears nothing at all, while a new one is served.
func TestSwallowedConnectionIsSilent(t *testing.T) {
	if why := netns.Missing(); why != "" {
		t.Skip(why)
	}
	l, err := netns.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	ln, err := net.Listen("tcp", net.JoinHostPort(l.Near, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dial := func() (conn net.Conn, far *exec.Cmd, out func() string) {
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		argv := append(l.Enter(), "bash", "-c", "exec 3<>/dev/tcp/"+l.Near+"/"+port+"; head -n 1 <&3; sleep 600")
		cmd := exec.Command(argv[0], argv[1:]...)
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if conn, err = ln.Accept(); err != nil {
			t.Fatal(err)
		}
		return conn, cmd, func() string {
			_ = pipe.(*os.File).SetReadDeadline(time.Now().Add(20 * time.Second))
			b := make([]byte, 100)
			n, _ := pipe.Read(b)
			return string(b[:n])
		}
	}
	first, far, _ := dial()
	defer first.Close()
	if host, _, _ := net.SplitHostPort(first.RemoteAddr().String()); host != l.Far {
		t.Errorf("it came from %s, want the far end, %s", host, l.Far)
	}
	ports, err := l.Connections(far.Process.Pid)
	if err != nil || !slices.Equal(ports, []int{first.RemoteAddr().(*net.TCPAddr).Port}) {
		t.Fatalf("connections %v (%v), want the one of %v", ports, err, first.RemoteAddr())
	}
	if err := l.Swallow(t.Context(), ports); err != nil {
		t.Fatal(err)
	}
	// Killed, the far end's kernel says FIN or RST; neither comes through.
	_ = far.Process.Kill()
	_ = first.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read of a swallowed connection: %v, want nothing until the deadline", err)
	}
	second, _, out := dial()
	defer second.Close()
	if _, err := second.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if got, want := out(), "hello\n"; got != want {
		t.Errorf("a new connection carried %q, want %q", got, want)
	}
}

// 1 Mbit/s is 125 kB/s, whatever the burst.
func TestShapedLinkIsSlow(t *testing.T) {
	if why := netns.Missing(); why != "" {
		t.Skip(why)
	}
	l, err := netns.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := l.Shape(t.Context(), "1mbit", 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(l.Near, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	argv := append(l.Enter(), "bash", "-c", "head -c 250000 /dev/zero >/dev/tcp/"+l.Near+"/"+port)
	cmd := exec.Command(argv[0], argv[1:]...)
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	total := 0
	for b := make([]byte, 64<<10); ; {
		n, err := conn.Read(b)
		if total += n; err != nil {
			break
		}
	}
	if took := time.Since(began); total != 250_000 || took < 1500*time.Millisecond {
		t.Errorf("%d bytes in %v, want 250000 in about 2 s", total, took)
	}
	carried, err := l.Carried()
	if err != nil || carried < 250_000 {
		t.Errorf("carried %d (%v), want at least what was sent", carried, err)
	}
}
