package protocol

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// ClientConfig says which control plane a Client talks to, and how.
type ClientConfig struct {
	// Server is the base URL. https; http only to loopback, or with Insecure.
	Server   string
	Insecure bool
	// TLS is cloned. nil = the system's authorities, TLS 1.2 and later.
	TLS *tls.Config
	// Proxy chooses the proxy of a request. nil = HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
	Proxy func(*http.Request) (*url.URL, error)
	// ProcessID is this process's "<boot id>.<random>", sent with polls and activations.
	ProcessID string
	UserAgent string
	// Credential is the current API key; "" = none yet. It may be called at any time, concurrently.
	Credential func() string
	// Relink gets another API key than the refused one. It is called when the server refuses
	// the key, and the call is repeated once with what Credential says then. It must return at
	// once when the key has changed from refused already. nil = a refusal is an error like any other.
	Relink func(ctx context.Context, refused string) error
	// Timeout is the deadline of a call beside what it is asked to wait. 0 = 30 s.
	Timeout time.Duration
	// Base replaces all transports, for tests. It is not closed.
	Base   http.RoundTripper
	Logger *zap.Logger
}

// Client makes every call of the protocol. Its methods may be called concurrently. Each has a
// deadline of its own, whatever the context says.
type Client struct {
	cfg   ClientConfig
	base  *url.URL
	log   *zap.Logger
	pools pools
	// skew is our clock minus the server's in nanoseconds, from the last answer that had a Date.
	skew atomic.Int64
	// skewed is set while the skew is large, so that it is logged once.
	skewed atomic.Bool
	// leaseTTL (ns) is the last one the server named: it bounds a heartbeat's deadline.
	leaseTTL atomic.Int64
}

// NewClient checks cfg and opens nothing.
func NewClient(cfg ClientConfig) (*Client, error) {
	base, err := ParseServer(cfg.Server, cfg.Insecure)
	if err != nil {
		return nil, err
	}
	if cfg.Credential == nil {
		cfg.Credential = func() string { return "" }
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "agentd"
	}
	if cfg.Proxy == nil {
		cfg.Proxy = http.ProxyFromEnvironment
	}
	c := &Client{cfg: cfg, base: base, log: cfg.Logger}
	if c.log == nil {
		c.log = zap.NewNop()
	}
	c.pools.open(cfg)
	return c, nil
}

// Close closes idle connections. Calls in flight end as their contexts do.
func (c *Client) Close() { c.pools.close() }

// FreshHeartbeats makes the next heartbeat go out on a fresh connection: after a missed one,
// the old connection may lead nowhere. Heartbeats in flight are left alone.
func (c *Client) FreshHeartbeats() { c.pools.freshHeartbeats() }

// Skew is how far this machine's clock is ahead of the server's, as its last answer had it;
// 0 while unknown. For messages only: nothing is decided by it.
func (c *Client) Skew() time.Duration { return time.Duration(c.skew.Load()) }

// ParseServer checks a control plane's base URL and says what is wrong with it and what to write instead.
func ParseServer(server string, insecure bool) (*url.URL, error) {
	fault := func(format string, args ...any) (*url.URL, error) {
		return nil, fmt.Errorf("protocol: server %q %s", server, fmt.Sprintf(format, args...))
	}
	if server == "" {
		return nil, errors.New("protocol: no server given: name the control plane's URL, as in https://control.example.com")
	}
	if !strings.Contains(server, "://") {
		rest := strings.TrimLeft(server, "/")
		if host, _, _ := strings.Cut(rest, "/"); loopback(withoutPort(host)) {
			return fault("has no scheme: write http://%s or https://%s", rest, rest)
		}
		return fault("has no scheme: write https://%s", rest)
	}
	u, err := url.Parse(server)
	if err != nil {
		return fault("is not a URL: %v", errors.Unwrap(err))
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return fault("has the scheme %q: only https:// (and http:// to loopback) is spoken", u.Scheme)
	case u.Hostname() == "":
		return fault("names no host: write https://control.example.com")
	case u.User != nil:
		return nil, errors.New("protocol: server holds a user name or password: the agent proves itself by its key; leave them out")
	case u.RawQuery != "" || u.Fragment != "":
		return fault("has a query or a fragment: leave out what follows the path")
	case u.Scheme == "http" && !insecure && !loopback(u.Hostname()):
		return fault("would send API keys unencrypted: use https://, or say that it may be insecure (insecure: true, --insecure)")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

func withoutPort(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return host
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
