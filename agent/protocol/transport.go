package protocol

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How soon a connection that leads nowhere (a black hole: no RST, no answer) is given up.
const (
	// pingAfter and pingTimeout: an HTTP/2 connection on which nothing came for 5 s is pinged,
	// and closed when the ping isn't answered in another 5 s. A held poll is such a silence.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
	// HTTP/1.1 has no ping, so TCP's own probes do it: 5 s + 3 × 2 s.
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
	// What was sent and is not acknowledged for as long ends the connection (TCP_USER_TIMEOUT).
	// Small requests are acknowledged within a round trip. Log bodies have longer: a server that
	// stops reading for a moment, its disk being busy, looks the same to TCP.
	userTimeout     = 10 * time.Second
	userTimeoutLogs = 30 * time.Second
	// dialTimeout bounds name look-up and connect, handshakeTimeout the TLS handshake: the same order as above.
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// idleTimeout closes connections before the usual proxies do (60 s), so that a request
	// rarely meets a connection that is just being closed.
	idleTimeout = 50 * time.Second
)

// pool names a set of connections that nothing else may use up.
type pool int

const (
	poolRest       pool = iota // link, complete, release
	poolHeartbeats             // never behind a log body
	poolPolls                  // held for long
	poolLogs                   // large bodies
	poolQueries                // a flood of them delays nothing else
	numPools
)

// pools holds one transport per pool. HTTP/2 would otherwise put everything on one
// connection, where a log body on a slow link stands before a heartbeat.
type pools struct {
	cfg        ClientConfig
	base       http.RoundTripper
	fixed      [numPools]*http.Transport // but for heartbeats
	heartbeats atomic.Pointer[http.Transport]

	mu        sync.Mutex
	freshened time.Time // guarded by mu: when heartbeats was replaced last
}

func (p *pools) open(cfg ClientConfig) {
	p.cfg, p.base = cfg, cfg.Base
	if p.base != nil {
		return
	}
	for i := range p.fixed {
		p.fixed[i] = newTransport(cfg, pool(i))
	}
	p.heartbeats.Store(p.fixed[poolHeartbeats])
}

func (p *pools) get(which pool) http.RoundTripper {
	switch {
	case p.base != nil:
		return p.base
	case which == poolHeartbeats:
		return p.heartbeats.Load()
	default:
		return p.fixed[which]
	}
}

// freshFor is how long connections count as fresh: when one path is lost, every attempt's
// heartbeat misses at once, and one new connection does for them all.
const freshFor = time.Second

func (p *pools) freshHeartbeats() {
	if p.base != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.freshened) < freshFor {
		return
	}
	p.freshened = time.Now()
	old := p.heartbeats.Swap(newTransport(p.cfg, poolHeartbeats))
	old.CloseIdleConnections()
}

func (p *pools) close() {
	if p.base != nil {
		return
	}
	for _, t := range p.fixed {
		t.CloseIdleConnections()
	}
	p.heartbeats.Load().CloseIdleConnections()
}

func newTransport(cfg ClientConfig, which pool) *http.Transport {
	unacked := userTimeout
	if which == poolLogs {
		unacked = userTimeoutLogs
	}
	dialer := &net.Dialer{
		Timeout: dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
		},
		Control: func(_, _ string, raw syscall.RawConn) error {
			var inner error
			err := raw.Control(func(fd uintptr) {
				inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacked.Milliseconds()))
			})
			if err != nil {
				return err
			}
			return inner
		},
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return patientConn{conn}, nil
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.TLS != nil {
		tlsConfig = cfg.TLS.Clone()
		tlsConfig.MinVersion = max(tlsConfig.MinVersion, tls.VersionTLS12)
	}
	return &http.Transport{
		Proxy:                  cfg.Proxy,
		OnProxyConnectResponse: checkProxy,
		DialContext:            dial,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    handshakeTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		MaxIdleConnsPerHost:    64, // as many attempts as may ship or beat at once; the default of 2 would dial for each
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: 64 << 10, // ours are under 1 KiB
		WriteBufferSize:        64 << 10, // log bodies are written whole, not by 4 KiB
		DisableCompression:     true,     // answers are small, and a bounded body shouldn't unpack into a huge one
	}
}

// lastWord is how long an answer that was sent before a reset may take to be read: it has
// arrived already.
const lastWord = 250 * time.Millisecond

// patientConn holds back a failed write for a moment. A server that refuses a body by its size answers
// and closes while we still send, and one that refuses our client certificate does so when we believe the
// handshake done (TLS 1.3); without this, the failed write would often be what the caller hears of, and not the
// 413 that tells it to halve the batch, or the alert that tells which file to look at.
type patientConn struct{ net.Conn }

func (c patientConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		timer := time.NewTimer(lastWord)
		defer timer.Stop()
		<-timer.C
	}
	return n, err
}

// checkProxy turns a proxy's refusal into an error that says whose it is.
func checkProxy(_ context.Context, proxy *url.URL, _ *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	return &proxyError{proxy: proxy.Host, status: answer.StatusCode}
}
