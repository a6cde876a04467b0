package faults

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"strconv"
)

// capture is a ResponseWriter that keeps the answer from the client. Flushes are swallowed.
// It is used by the handler's goroutine only.
type capture struct {
	w       http.ResponseWriter
	header  http.Header
	status  int
	limit   int // how much of the body is kept
	body    bytes.Buffer
	skipped bool // the body went over limit
}

func newCapture(w http.ResponseWriter, limit int) *capture {
	return &capture{w: w, header: http.Header{}, limit: limit}
}

func (c *capture) Header() http.Header { return c.header }

func (c *capture) WriteHeader(status int) {
	if c.status == 0 && status >= 200 {
		c.status = status
	}
}

func (c *capture) Write(p []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	keep := min(len(p), c.limit-c.body.Len())
	c.body.Write(p[:keep])
	c.skipped = c.skipped || keep < len(p)
	return len(p), nil
}

// FlushError is what http.ResponseController finds: nothing must reach the client.
func (c *capture) FlushError() error { return nil }

// Flush is FlushError for those who ask for http.Flusher.
func (c *capture) Flush() {}

// Unwrap lets handlers set deadlines on the connection.
func (c *capture) Unwrap() http.ResponseWriter { return c.w }

// sendHalf sends the status, the header with the full length, half of the body, and cuts.
// An answer without a body is cut within its header. It doesn't return.
func (c *capture) sendHalf() {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	n := c.body.Len()
	if n == 0 {
		c.cutHeader()
	}
	h := c.w.Header()
	maps.Copy(h, c.header)
	if !c.skipped {
		h.Set("Content-Length", strconv.Itoa(n))
	}
	c.w.WriteHeader(c.status)
	c.w.Write(c.body.Bytes()[:n/2])         // the client's loss
	http.NewResponseController(c.w).Flush() //nolint:errcheck // likewise
	panic(http.ErrAbortHandler)
}

func (c *capture) cutHeader() {
	conn, rw, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: the stream is reset
	}
	line := fmt.Sprintf("HTTP/1.1 %d %s\r\n", c.status, http.StatusText(c.status))
	rw.WriteString(line[:len(line)/2]) //nolint:errcheck // the client's loss
	rw.Flush()                         //nolint:errcheck // likewise
	conn.Close()                       // likewise
	panic(http.ErrAbortHandler)
}
