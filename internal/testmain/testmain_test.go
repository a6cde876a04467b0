package testmain_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestLoopbackIsReached(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestNothingElseIsReached(t *testing.T) {
	// 192.0.2.0/24 is set aside for documentation (RFC 5737): nothing answers there even if a packet got out.
	_, err := net.DialTimeout("tcp", "192.0.2.1:80", time.Second)
	if want := unix.ENETUNREACH; !errors.Is(err, want) {
		t.Fatalf("dial outside: got %v, want %v", err, want)
	}
}
