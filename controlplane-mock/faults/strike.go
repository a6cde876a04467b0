package faults

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"agentd/agent/protocol"
)

const (
	// maxHeld is how much of a request's body is read ahead. Twice the protocol's largest log body:
	// what goes beyond stays on the connection, and the handler reads it from there.
	maxHeld = 64 << 20
	// lateGrace is how long a handler may go on once the client of a slow request has left: time to
	// commit what it was sent, and too short for a held poll to take a job for nobody.
	lateGrace = 2 * time.Second
)

// strike is one request that a rule struck.
type strike struct {
	rule    Rule
	changed <-chan struct{}
	next    http.Handler
}

func (s strike) serve(w http.ResponseWriter, r *http.Request) {
	if s.rule.Mode == Reset && s.rule.Delay == 0 {
		reset(w)
	}
	readAhead(r)
	left := s.delay(r)
	switch s.rule.Mode {
	case Reset:
		reset(w)
	case Status:
		s.answerStatus(w)
	case HTML:
		s.answerHTML(w)
	case Hang:
		select {
		case <-r.Context().Done():
		case <-s.changed:
		}
		panic(http.ErrAbortHandler)
	case Slow:
		s.late(w, r, left)
	case DropResponse:
		// The handler's answer goes nowhere, and nothing has been sent yet: the connection just ends.
		s.next.ServeHTTP(newCapture(w, 0), r)
		panic(http.ErrAbortHandler)
	case Truncate:
		c := newCapture(w, maxHeld)
		s.next.ServeHTTP(c, r)
		c.sendHalf()
	default:
		panic("BUG: faults: mode " + string(s.rule.Mode) + " passed validation")
	}
}

// delay waits; left says that the client went away meanwhile.
func (s strike) delay(r *http.Request) (left bool) {
	if s.rule.Delay == 0 {
		return false
	}
	t := time.NewTimer(s.rule.Delay.Duration())
	defer t.Stop()
	gone := r.Context().Done()
	for {
		select {
		case <-t.C:
			return left
		case <-s.changed:
			return left
		case <-gone:
			if s.rule.Mode != Slow {
				panic(http.ErrAbortHandler)
			}
			// A slow server doesn't know: it commits what it was sent, as late as it would have.
			left, gone = true, nil
		}
	}
}

// late serves a slow request whether or not its client still waits.
func (s strike) late(w http.ResponseWriter, r *http.Request, left bool) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	end := time.AfterFunc(lateGrace, cancel)
	defer end.Stop()
	if !left {
		end.Stop()
		defer context.AfterFunc(r.Context(), func() { end.Reset(lateGrace) })()
	}
	s.next.ServeHTTP(w, r.WithContext(ctx))
}

func (s strike) answerStatus(w http.ResponseWriter) {
	if s.rule.RetryAfter != "" {
		w.Header().Set("Retry-After", s.rule.RetryAfter)
	}
	status := s.rule.status()
	if s.rule.Code == "" {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		io.WriteString(w, "<html><body><h1>"+strconv.Itoa(status)+" "+http.StatusText(status)+"</h1></body></html>\n") //nolint:errcheck // the client's loss
		return
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeProblem(w, protocol.Problem{Status: status, Code: s.rule.Code, Detail: "injected fault", Next: s.rule.Next})
}

func (s strike) answerHTML(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(w, "<!doctype html><html><head><title>Sign in to the network</title></head><body>Please sign in.</body></html>\n") //nolint:errcheck // the client's loss
}

func writeProblem(w http.ResponseWriter, p protocol.Problem) {
	p.Type, p.Title = "about:blank", http.StatusText(p.Status)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	json.NewEncoder(w).Encode(p) //nolint:errcheck // the client's loss
}

// readAhead takes the body off the connection, so that the server notices when the client
// leaves (net/http looks only once the body is read), and so that the client's write succeeds.
func readAhead(r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	var held bytes.Buffer
	_, err := io.Copy(&held, io.LimitReader(r.Body, maxHeld))
	rest := io.Reader(r.Body)
	if err != nil {
		rest = failing{err} // the handler sees the same broken body as without us
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&held, rest), r.Body}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// reset ends the connection with RST. It doesn't return. Where the connection can't be had
// (HTTP/2), the stream is reset.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	abort(conn)
	panic(http.ErrAbortHandler)
}

// abort closes so that the peer sees RST: nothing that was queued is sent any more.
func abort(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn() // closing the TLS layer would say goodbye first
	}
	raw := conn
	for {
		inner, ok := raw.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		raw = inner.NetConn()
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		tcp.SetLinger(0) //nolint:errcheck // a connection that is gone already needs no RST
	}
	conn.Close() // it is given up
}
