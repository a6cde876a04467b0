package faults_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentd/controlplane-mock/faults"
	"agentd/internal/testmain"
)

// net/http lingers half a second on a connection that it closed with a request half read, Close or not.
func TestMain(m *testing.M) {
	testmain.Run(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// patience bounds what should happen at once; silence is how long nothing has to come for us to
// say that nothing comes.
const (
	patience = 10 * time.Second
	silence  = 150 * time.Millisecond
)

const answer = `{"next":1600}`

// backend is the handler behind the faults: it commits what it is sent.
type backend struct {
	commits  atomic.Int64
	bytes    atomic.Int64
	entered  chan struct{}       // one for each call, may be nil
	then     func(*http.Request) // after the commit, before the answer; may be nil
	noAnswer bool                // 204
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	b.bytes.Add(n)
	b.commits.Add(1)
	if b.entered != nil {
		b.entered <- struct{}{}
	}
	if b.then != nil {
		b.then(r)
	}
	if b.noAnswer {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, answer)
}

// serve runs h on a real TCP port.
func serve(t *testing.T, h http.Handler, wrap func(net.Listener) net.Listener) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if wrap != nil {
		ln = wrap(ln)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: patience}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
	return addr
}

func injector(t *testing.T, rules ...faults.Rule) *faults.Injector {
	t.Helper()
	in := faults.NewInjector(faults.Config{})
	if err := in.SetRules(rules); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return in
}

// dial opens a raw connection and sends a POST with body.
func post(t *testing.T, addr, path, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	send(t, c, path, body)
	return c
}

func send(t *testing.T, c net.Conn, path, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://agent.test"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Write(c); err != nil {
		t.Fatal(err)
	}
}

// receive reads one answer within patience.
func receive(t *testing.T, c net.Conn) (*http.Response, string, error) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

// silent says whether nothing at all comes on c for a while.
func silent(t *testing.T, c net.Conn) bool {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(silence))
	n, err := c.Read(make([]byte, 1))
	ne, ok := errors.AsType[net.Error](err)
	return n == 0 && ok && ne.Timeout()
}

func wait(t *testing.T, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
	}
}
