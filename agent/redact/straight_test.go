package redact_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"agentd/agent/redact"
)

// hasty reads files itself for as long as it may, as the shipper does.
type hasty struct {
	got    bytes.Buffer
	direct int64
}

func (h *hasty) ReadFrom(src io.Reader) (n int64, err error) {
	s, ok := src.(*redact.Straight)
	if !ok {
		return h.got.ReadFrom(src)
	}
	conn, err := s.File().SyscallConn()
	if err != nil {
		return 0, err
	}
	b := make([]byte, 8)
	for {
		var k int
		var readErr error
		more := false
		if err := conn.Read(func(fd uintptr) bool {
			if !s.Begin() {
				more = true
				return true
			}
			k, readErr = readFD(int(fd), b)
			s.End(max(k, 0))
			return !errors.Is(readErr, errAgain)
		}); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return n, nil
			}
			return n, err
		}
		switch {
		case more:
			rest, err := h.got.ReadFrom(s)
			return n + rest, err
		case readErr != nil || k == 0:
			return n, readErr
		}
		h.got.Write(b[:k])
		h.direct += int64(k)
		n += int64(k)
	}
}

// TestAddIsInForceWhenItReturns: a reader that reads past the filter never takes what was printed after Add.
func TestAddIsInForceWhenItReturns(t *testing.T) {
	const secret = "hunter2hunter2"
	var direct int64
	for range 300 {
		set, _ := redact.NewSet()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var h hasty
		var n int64
		var wg sync.WaitGroup
		wg.Go(func() { n, err = set.Filter(&h).ReadFrom(r) })
		before := "printed before: " + secret + "\n"
		io.WriteString(w, before)
		if err := set.Add(secret); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, secret+"\n")
		w.Close()
		wg.Wait()
		r.Close()
		if err != nil || n != int64(len(before)+len(secret)+1) {
			t.Fatalf("read %d bytes, %v; want %d", n, err, len(before)+len(secret)+1)
		}
		// What was printed before may have been read before, whole, in part or not.
		if !bytes.HasSuffix(h.got.Bytes(), []byte("\n[redacted]\n")) {
			t.Fatalf("got %q", h.got.String())
		}
		direct += h.direct
	}
	if direct == 0 {
		t.Error("nothing was ever read past the filter: this test shows nothing")
	}
}

// TestAnAbandonedPipeHasEnded: whoever reads is told of an end, not of a fault, on both ways.
func TestAnAbandonedPipeHasEnded(t *testing.T) {
	for _, secrets := range [][]string{nil, {"secret"}} {
		set, err := redact.NewSet(secrets...)
		if err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var h hasty
		over := make(chan error, 1)
		go func() { _, err := set.Filter(&h).ReadFrom(r); over <- err }()
		io.WriteString(w, "sec")
		if err := r.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if err := <-over; err != nil {
			t.Errorf("%d secrets: %v", len(secrets), err)
		}
		if got := h.got.String(); got != "sec" && secrets != nil {
			t.Errorf("%d secrets: got %q, want what was held, too", len(secrets), got)
		}
		w.Close()
		r.Close()
	}
}
