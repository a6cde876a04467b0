package instances

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// balancer is a reverse proxy as people put before their servers: each request goes to the next instance, one that refuses
// connections is left out for a moment, and whoever hits upon it gets a 502.
type balancer struct {
	URL      string
	backends []*backend
	n        atomic.Uint64

	mu    sync.Mutex
	first map[string]time.Time // guarded by mu: by agent key, the first answer since watch
}

type backend struct {
	url   *url.URL
	until atomic.Int64 // unix nanoseconds: left out
}

// leftOut is how long an instance that refused is left out.
const leftOut = 300 * time.Millisecond

func newBalancer(t *testing.T, urls ...string) *balancer {
	t.Helper()
	b := &balancer{}
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		b.backends = append(b.backends, &backend{url: u})
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0), // what is done here makes errors
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(b.next().url)
			r.Out.Host = r.In.Host
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			var op *net.OpError
			if !asDial(err, &op) {
				panic(http.ErrAbortHandler) // the instance went away, or dropped its answer: so does ours
			}
			for _, k := range b.backends {
				if k.url.Host == r.URL.Host {
					k.until.Store(time.Now().Add(leftOut).UnixNano())
				}
			}
			http.Error(w, "bad gateway", http.StatusBadGateway)
		},
		ModifyResponse: func(resp *http.Response) error {
			b.seen(resp)
			return nil
		},
	}
	srv := httptest.NewServer(proxy)
	srv.Config.ErrorLog = proxy.ErrorLog
	t.Cleanup(func() {
		_ = srv.Config.Close() // those who still poll don't come back while it closes
		srv.Close()
		transport.CloseIdleConnections()
	})
	b.URL = srv.URL
	return b
}

func (b *balancer) next() *backend {
	now := time.Now().UnixNano()
	for range b.backends {
		if k := b.backends[b.n.Add(1)%uint64(len(b.backends))]; k.until.Load() < now {
			return k
		}
	}
	return b.backends[b.n.Add(1)%uint64(len(b.backends))]
}

// watch begins to note when each agent is answered first.
func (b *balancer) watch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.first = map[string]time.Time{}
}

func (b *balancer) seen(resp *http.Response) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if key := resp.Request.Header.Get("Authorization"); b.first != nil && resp.StatusCode < 300 {
		if _, again := b.first[key]; !again {
			b.first[key] = time.Now()
		}
	}
}

// arrivals are the first answers since watch.
func (b *balancer) arrivals() (all []time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.first {
		all = append(all, at)
	}
	return all
}
