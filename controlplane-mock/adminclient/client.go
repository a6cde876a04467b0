package adminclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"agentd/agent/protocol"
)

const (
	// callTimeout ends an ordinary call: the server answers these from its store at once, so half a
	// minute is a server that is not there.
	callTimeout = 30 * time.Second
	// askMargin is what an answer may take on top of a query's own timeout.
	askMargin = 15 * time.Second
	// maxAnswer bounds a JSON answer: a page of 1,000 jobs with payloads of 256 KiB never comes near in practice.
	maxAnswer = 256 << 20
	// maxProblem bounds an error's body; a proxy's page may be anything.
	maxProblem = 64 << 10
)

// Config says which server, and who asks.
type Config struct {
	URL       string       // base URL: http://127.0.0.1:7070
	Token     string       // the admin token
	HTTP      *http.Client // nil: a client of its own without timeouts (calls have theirs)
	UserAgent string
}

// Client calls the admin side. It may be used concurrently.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
	agent string
}

// New checks the configuration; it connects to nothing.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("adminclient: URL: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("adminclient: URL %q: want http://HOST:PORT or https://HOST:PORT", cfg.URL)
	}
	u.Path, u.RawQuery, u.Fragment = strings.TrimSuffix(u.Path, "/"), "", ""
	c := &Client{base: u, token: cfg.Token, http: cfg.HTTP, agent: cfg.UserAgent}
	if c.http == nil {
		c.http = &http.Client{}
	}
	if c.agent == "" {
		c.agent = "controlplane-adminclient"
	}
	return c, nil
}

// Error is an answer that isn't a success, or the lack of an answer.
type Error struct {
	Op         string // "submit a job"
	Status     int    // 0: no answer came
	Code       protocol.Code
	Detail     string
	RetryAfter time.Duration
	Err        error // the cause where no control plane answered
}

func (e *Error) Error() string {
	switch {
	case e.Err != nil:
		return fmt.Sprintf("adminclient: %s: %v", e.Op, e.Err)
	case e.Detail != "":
		return fmt.Sprintf("adminclient: %s: %s (%s)", e.Op, e.Detail, e.Code)
	}
	return fmt.Sprintf("adminclient: %s: %s (status %d)", e.Op, e.Code, e.Status)
}

func (e *Error) Unwrap() error { return e.Err }

// Unreachable says that no control plane answered: nothing did, or something that doesn't
// speak the protocol (a proxy, a wrong port).
func (e *Error) Unreachable() bool { return e.Code == "" }

// IsUnreachable says whether err is the lack of a control plane's answer.
func IsUnreachable(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Unreachable()
}

// CodeOf is what the server said, empty if it said nothing.
func CodeOf(err error) protocol.Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// Do calls the server and returns the answer's status and JSON. It is the way to what has no
// method of its own.
func (c *Client) Do(ctx context.Context, op, method, path string, query url.Values, body any) (int, json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.send(ctx, op, method, path, query, body)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close() // the whole answer has been read, or it failed
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return resp.StatusCode, nil, &Error{Op: op, Status: resp.StatusCode, Err: err}
	}
	if resp.StatusCode == http.StatusNoContent {
		return resp.StatusCode, nil, nil
	}
	if !json.Valid(raw) {
		return resp.StatusCode, nil, &Error{Op: op, Status: resp.StatusCode,
			Err: fmt.Errorf("%s answered %q, which isn't a control plane's answer", c.base.Redacted(), resp.Status)}
	}
	return resp.StatusCode, raw, nil
}

// send returns a successful answer with its body open, or an *Error.
func (c *Client) send(ctx context.Context, op, method, path string, query url.Values, body any) (*http.Response, error) {
	target := c.base.String() + path // path is escaped already
	if q := query.Encode(); q != "" {
		target += "?" + q
	}
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("adminclient: %s: %w", op, err)
		}
		rd = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, rd)
	if err != nil {
		return nil, fmt.Errorf("adminclient: %s: %w", op, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("User-Agent", c.agent)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &Error{Op: op, Err: cause(ctx, err)}
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close() // an error answer, read as far as it is of use
	return nil, c.problem(op, resp)
}

// cause prefers why a context ended over "context canceled".
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(err, c) {
		return fmt.Errorf("%w: %w", c, err)
	}
	return err
}

func (c *Client) problem(op string, resp *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	e := &Error{Op: op, Status: resp.StatusCode}
	var p protocol.Problem
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != "application/problem+json" || json.Unmarshal(raw, &p) != nil || p.Code == "" {
		e.Err = fmt.Errorf("%s answered %q, which isn't a control plane's answer", c.base.Redacted(), resp.Status)
		return e
	}
	e.Code, e.Detail = p.Code, p.Detail
	if e.Detail == "" {
		e.Detail = p.Title
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	return e
}

// call decodes a JSON answer.
func call[T any](ctx context.Context, c *Client, op, method, path string, query url.Values, body any) (T, int, error) {
	var out T
	status, raw, err := c.Do(ctx, op, method, path, query, body)
	if err != nil {
		return out, status, err
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return out, status, &Error{Op: op, Status: status, Err: fmt.Errorf("the answer doesn't decode: %w", err)}
	}
	return out, status, nil
}
