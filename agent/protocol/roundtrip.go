package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.uber.org/zap"
)

const (
	// maxAnswer bounds what is read of an answer: a JSON body is 1 MiB by default, and a server
	// may be set to more.
	maxAnswer = 4 << 20
	// maxRetryAfter bounds what a server or proxy can make us wait.
	maxRetryAfter = 10 * time.Minute
	// maxDetail bounds the foreign text in our errors, and so in logs.
	maxDetail = 512
	// largeSkew is worth a warning: certificates and people's reading of logs suffer from it.
	largeSkew = time.Minute
)

// call is one call of the protocol.
type call struct {
	op      string
	pool    pool
	method  string
	job     string // job id: the path is below it
	path    string
	query   url.Values
	header  http.Header
	timeout time.Duration
	in      any              // JSON body
	body    func() io.Reader // or this one, of size bytes
	size    int64
	out     any // JSON answer
	want    []int
	auth    bool      // carries the API key
	bearer  string    // or this one
	once    bool      // must not be sent twice, not even on a connection that turned out dead
	valid   validator // checked besides in
}

type validator interface{ Validate() error }

func refused(op string, err error) error { return &Error{Op: op, Err: err} }

// do makes the call, and repeats it once with another key when the server refuses the key.
func (c *Client) do(ctx context.Context, k *call) (status int, err error) {
	if k.job != "" {
		if err := checkID("job id", k.job); err != nil {
			return 0, refused(k.op, err)
		}
		k.path = "/agent/v1/jobs/" + k.job + k.path
	}
	for _, v := range []any{k.in, k.valid} {
		if v, ok := v.(validator); ok && v != nil {
			if err := v.Validate(); err != nil {
				return 0, refused(k.op, err)
			}
		}
	}
	if k.in != nil {
		data, err := json.Marshal(k.in)
		if err != nil {
			return 0, refused(k.op, &FieldError{Field: "body", Why: err.Error()})
		}
		k.body, k.size = func() io.Reader { return bytes.NewReader(data) }, int64(len(data))
	}
	key := k.bearer
	if k.auth {
		key = c.cfg.Credential()
	}
	relink := k.auth && c.cfg.Relink != nil
	if key != "" || !relink {
		status, err = c.try(ctx, k, key)
		if !relink || CodeOf(err) != CodeUnauthenticated {
			return status, err
		}
	}
	if err := c.cfg.Relink(ctx, key); err != nil {
		return 0, fmt.Errorf("protocol: %s: re-link: %w", k.op, err)
	}
	return c.try(ctx, k, c.cfg.Credential())
}

// try sends the request once.
func (c *Client) try(parent context.Context, k *call, key string) (int, error) {
	ctx, cancel := context.WithTimeout(parent, k.timeout)
	defer cancel()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	req := c.request(httptrace.WithClientTrace(ctx, noSecretRepeats(cut)), k, key)
	answer, err := c.pools.get(k.pool).RoundTrip(req)
	if err != nil {
		if errors.Is(context.Cause(ctx), errCut) {
			err = errCut
		}
		return 0, c.transportError(parent, k, 0, err)
	}
	defer answer.Body.Close()
	c.noteSkew(answer.Header)
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return 0, c.transportError(parent, k, answer.StatusCode, err)
	}
	if answer.StatusCode/100 != 2 {
		return answer.StatusCode, problemError(k.op, answer, body)
	}
	if why := k.decode(answer, body); why != "" {
		return answer.StatusCode, &Error{Op: k.op, Status: answer.StatusCode, Detail: notOurs(answer, why)}
	}
	return answer.StatusCode, nil
}

// errCut is a request whose connection was cut while it was being held.
var errCut = errors.New("the connection was cut before the answer")

// noSecretRepeats keeps net/http from repeating a request that was held for a while. It does so
// where a kept connection ends without an answer; within a second that is a connection that
// had been closed while idle, and the repetition is welcome. Later it is a cut, which the agent
// must see: to learn a shorter wait, and to come back with jitter as everybody else.
func noSecretRepeats(cut context.CancelCauseFunc) *httptrace.ClientTrace {
	var first time.Time // RoundTrip asks for one connection after the other
	return &httptrace.ClientTrace{GetConn: func(string) {
		switch {
		case first.IsZero():
			first = time.Now()
		case time.Since(first) > time.Second:
			cut(errCut)
		}
	}}
}

func (c *Client) request(ctx context.Context, k *call, key string) *http.Request {
	u := *c.base
	u.Path += k.path // ids need no escaping: checkID
	u.RawQuery = k.query.Encode()
	header := k.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("User-Agent", c.cfg.UserAgent)
	header.Set("Accept", "application/json, application/problem+json")
	if key != "" {
		header.Set("Authorization", "Bearer "+key)
	}
	if !k.once {
		// Empty, so it isn't sent: it tells net/http that the request may be repeated when a kept
		// connection turns out to be closed. All calls but link are harmless to repeat.
		header["Idempotency-Key"] = []string{}
	}
	if k.in != nil {
		header.Set("Content-Type", "application/json")
	}
	req := (&http.Request{Method: k.method, URL: &u, Header: header, Host: u.Host}).WithContext(ctx)
	if k.body != nil && k.size > 0 {
		req.ContentLength = k.size
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(k.body()), nil }
		req.Body, _ = req.GetBody()
	} else {
		req.Body = http.NoBody
	}
	return req
}

// decode fills k.out from a 2xx; why is "" or what shows that the answer isn't the control plane's.
func (k *call) decode(answer *http.Response, body []byte) (why string) {
	switch {
	case !slices.Contains(k.want, answer.StatusCode):
		return "that status is no answer to this call"
	case answer.StatusCode == http.StatusNoContent:
		return ""
	case len(body) > maxAnswer:
		return "it is larger than " + strconv.Itoa(maxAnswer) + " bytes"
	}
	if err := Decode(body, k.out); err != nil {
		return err.Error()
	}
	if v, ok := k.out.(validator); ok {
		if err := v.Validate(); err != nil {
			return err.Error()
		}
	}
	return ""
}

func notOurs(answer *http.Response, why string) string {
	kind, _, _ := strings.Cut(answer.Header.Get("Content-Type"), ";")
	if kind == "" {
		kind = "no content type"
	}
	return fmt.Sprintf("the answer (%s) isn't a control plane's; is a proxy or a login page in between, or the server's URL wrong? (%s)",
		clean(kind), clean(why))
}

// problemError reads an answer other than 2xx. The code counts only with a status of its own.
func problemError(op string, answer *http.Response, body []byte) *Error {
	e := &Error{Op: op, Status: answer.StatusCode, RetryAfter: retryAfter(answer.Header)}
	var p Problem
	if len(body) <= maxAnswer && json.Unmarshal(body, &p) == nil {
		_, known := ruleFor(answer.StatusCode, p.Code)
		if known && (p.Code != CodeLogGap || p.Next != nil && *p.Next >= 0) {
			e.Code = p.Code
			e.Detail = clean(p.Detail)
			if p.Code == CodeLogGap {
				e.Next = *p.Next
			}
			return e
		}
	}
	e.Detail = explainStatus(answer, body)
	return e
}

// retryAfter reads seconds or an HTTP-date, the latter against the answer's own Date, since
// our clock may be anything.
func retryAfter(h http.Header) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text == "" {
		return 0
	}
	var wait time.Duration
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil {
		wait = time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		now, err := http.ParseTime(h.Get("Date"))
		if err != nil {
			return 0
		}
		wait = at.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}

// noteSkew remembers how far our clock is off, and says so once when it is far.
func (c *Client) noteSkew(h http.Header) {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return
	}
	skew := time.Since(date).Round(time.Second)
	c.skew.Store(int64(skew))
	large := skew.Abs() >= largeSkew
	if c.skewed.Swap(large) == large {
		return
	}
	if large {
		c.log.Warn("this machine's clock disagreed with the server's; set it", zap.Duration("ahead", skew))
	} else {
		c.log.Info("this machine's clock agreed with the server's again")
	}
}

// clean makes foreign text fit for a log line.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
	if len(s) > maxDetail {
		s = strings.ToValidUTF8(s[:maxDetail], "") + "…"
	}
	return s
}

// newFrames reads frames one after the other.
func newFrames(frames [][]byte) io.Reader {
	readers := make([]io.Reader, len(frames))
	for i, f := range frames {
		readers[i] = bytes.NewReader(f)
	}
	return io.MultiReader(readers...)
}
