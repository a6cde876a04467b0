package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"agentd/controlplane-mock/store"
)

// call is one request on its way through an endpoint. One goroutine's at a time, see serve.
type call struct {
	*http.Request
	w       http.ResponseWriter // is status
	s       *Server
	route   string // for logs and metrics
	started time.Time
	status  statusWriter
	key     store.Sum  // of the bearer
	auth    store.Auth // on agent routes
	wrote   bool       // the answer has begun: an error can only cut it
	cut     bool       // the answer is to be cut
	hold    *hold      // what it waits in
	then    endpoint   // what is to run after the wait; nil: the call doesn't wait
}

// endpoint serves a call. What it returns is answered as a problem, unless the call is to wait.
type endpoint func(c *call) error

func (c *call) ctx() context.Context { return c.Context() }

// answer writes v as the whole reply. 204 has no body; everything else is JSON.
func (c *call) answer(status int, v any) error {
	c.wrote = true
	c.w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusNoContent {
		c.w.WriteHeader(status)
		return nil
	}
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("controlplane: encode answer: %w", err)
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	_, _ = c.w.Write(body) // the client may be gone; it comes back if it cares
	return nil
}

// serve runs an endpoint and turns what it returns, a panic too, into an answer.
//
// Held calls are what a fleet costs while nothing happens, and much of that is stacks. Reading a request fits the 4 KiB that a connection's
// goroutine begins with; JSON, the store and writing an answer take it to 8 or 16, and the runtime gives back no half of a stack of
// which a quarter is in use, as it is by net/http alone. So whatever has depth runs apart, on a goroutine that ends with it, and the
// connection's own does nothing but wait. An endpoint that waits within itself is served inPlace: apart it would be a goroutine more.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, route string, e endpoint, inPlace bool) {
	c := &call{Request: r, s: s, route: route, started: time.Now(), status: statusWriter{ResponseWriter: w}}
	c.w = &c.status
	if inPlace {
		c.step(e)
	} else {
		c.apart(e)
	}
	for c.then != nil {
		c.hold.wait(c.ctx())
		c.apart(c.then)
	}
	if c.cut {
		panic(http.ErrAbortHandler)
	}
}

// apart takes a step on a goroutine of its own, and sends the answer from there, too.
func (c *call) apart(e endpoint) {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			// Nobody else would catch it on this goroutine: a writer that somebody has put around ours may panic as it answers.
			if p := recover(); p != nil {
				c.wrote = true // or tried to
				c.panicked(p)
			}
		}()
		c.step(e)
		if c.then == nil && !c.cut && c.ProtoMajor == 1 { // with HTTP/2 the end of the stream would be a frame more
			_ = http.NewResponseController(c.w).Flush() // the client may be gone
		}
	})
	wg.Wait()
}

// step runs an endpoint, or what is left of one, and ends the call unless that is to wait.
func (c *call) step(e endpoint) {
	c.then = nil
	defer func() {
		if p := recover(); p != nil {
			c.panicked(p)
		}
		if c.then == nil {
			c.s.metrics.requests.WithLabelValues(c.route, strconv.Itoa(c.status.code())).Inc()
			c.s.metrics.seconds.WithLabelValues(c.route).Observe(time.Since(c.started).Seconds())
		}
	}()
	if err := e(c); c.then == nil {
		c.end(err)
	}
}

// end answers what an endpoint returned.
func (c *call) end(err error) {
	switch {
	case err == nil:
		c.s.storeHealth.ok(c.s.log, c.route)
	case c.wrote:
		c.cut = true // half an answer must not look like a whole one
	default:
		p := asProblem(err)
		if _, meant := errors.AsType[*problem](err); !meant && p.Status == http.StatusServiceUnavailable && c.ctx().Err() == nil {
			c.s.storeHealth.failed(c.s.log, c.route, err)
		}
		p.write(c.w)
	}
}

// panicked ends a call whose endpoint panicked with p.
func (c *call) panicked(p any) {
	c.then = nil
	if p != any(http.ErrAbortHandler) {
		c.s.log.Error("handler panicked", zap.String("route", c.route), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		if !c.wrote {
			newProblem(http.StatusInternalServerError, "internal", "the server has a fault; its log says which").write(c.w)
			return
		}
	}
	c.cut = true
}

// statusWriter remembers the status for the metrics.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusWriter) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// object reads the body as one JSON object. optional: an empty body is an empty object.
func (c *call) object(optional bool) (*object, error) {
	if err := c.wantType("application/json"); err != nil {
		return nil, err
	}
	if enc := c.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, encIdentity) {
		return nil, newProblem(http.StatusUnsupportedMediaType, "invalid", "JSON bodies are sent without a content encoding")
	}
	limit := c.s.cfg.Limits.JSONBody
	if c.ContentLength > limit {
		return nil, tooLarge("the body is larger than %d bytes", limit)
	}
	end := c.readDeadline(c.s.cfg.Limits.BodyTime)
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.Body, limit))
	if err != nil {
		return nil, bodyProblem(err, limit)
	}
	end()
	if optional && len(body) == 0 {
		return &object{}, nil
	}
	return decodeObject(body)
}

// readDeadline gives the body d to arrive, so that a client that sends a byte now and then can't hold a connection
// for good. The function it returns lifts the deadline, or a hold would be cut by it; after a failed read it stays,
// for the connection is of no more use.
func (c *call) readDeadline(d time.Duration) func() {
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Now().Add(d)) // a writer without deadlines is a test's own
	return func() { _ = rc.SetReadDeadline(time.Time{}) }
}

func bodyProblem(err error, limit int64) *problem {
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return tooLarge("the body is larger than %d bytes", limit)
	}
	p := unavailable(time.Second, "the body did not arrive whole in time")
	p.header = map[string]string{"Connection": "close"}
	return p
}

// wantType refuses a body of another media type. None at all is taken for the right one.
func (c *call) wantType(want string) error {
	ct := c.Header.Get("Content-Type")
	if ct == "" {
		return nil
	}
	if got, _, err := mime.ParseMediaType(ct); err != nil || got != want {
		return newProblem(http.StatusUnsupportedMediaType, "invalid", "Content-Type: the body is sent as %s", want)
	}
	return nil
}

// query parses the query string; half a query must not pass for a whole one.
func (c *call) query() (url.Values, error) {
	q, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil {
		return nil, invalid("the query string can't be read")
	}
	return q, nil
}

// queryInt reads a whole number ≥ 0 of the query; one beyond hi counts as hi.
func queryInt(q url.Values, name string, hi, absent int64) (int64, error) {
	if !q.Has(name) {
		return absent, nil
	}
	s := q.Get(name)
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, invalid("%s: is not a whole number ≥ 0", name)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > hi { // only digits: it can only be too large
		return hi, nil //nolint:nilerr // see above
	}
	return n, nil
}

// queryRange is queryInt for numbers where beyond is a fault.
func queryRange(q url.Values, name string, lo, hi, absent int64) (int64, error) {
	n, err := queryInt(q, name, hi+1, absent)
	if err != nil {
		return 0, err
	}
	if n < lo || n > hi {
		return 0, invalid("%s: is not within %d and %d", name, lo, hi)
	}
	return n, nil
}

func queryBool(q url.Values, name string) (bool, error) {
	switch q.Get(name) {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	}
	return false, invalid("%s: is not true or false", name)
}
