package controlplane

import (
	"container/list"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiter is a bounded table of token buckets. When it is full the bucket that was unused for longest makes room:
// an attacker who forgets himself that way has come with more addresses than the table has entries.
type limiter[K comparable] struct {
	limit rate.Limit
	burst int
	size  int

	mu      sync.Mutex
	buckets map[K]*list.Element // guarded by mu; of *bucket[K]
	recent  *list.List          // guarded by mu; front = used last
}

type bucket[K comparable] struct {
	key K
	*rate.Limiter
}

func newLimiter[K comparable](limit rate.Limit, burst, size int) *limiter[K] {
	return &limiter[K]{limit: limit, burst: burst, size: max(size, 1), buckets: map[K]*list.Element{}, recent: list.New()}
}

// take uses one token of k's bucket, or says how long until there is one.
func (l *limiter[K]) take(k K) (wait time.Duration, ok bool) {
	l.mu.Lock()
	e, known := l.buckets[k]
	if known {
		l.recent.MoveToFront(e)
	} else {
		if l.recent.Len() >= l.size {
			oldest := l.recent.Back()
			delete(l.buckets, oldest.Value.(*bucket[K]).key) //nolint:forcetypeassert // the list holds nothing else
			l.recent.Remove(oldest)
		}
		e = l.recent.PushFront(&bucket[K]{key: k, Limiter: rate.NewLimiter(l.limit, l.burst)})
		l.buckets[k] = e
	}
	b := e.Value.(*bucket[K]) //nolint:forcetypeassert // the list holds nothing else
	l.mu.Unlock()

	r := b.Reserve()
	if !r.OK() {
		return time.Minute, false
	}
	if d := r.Delay(); d > 0 {
		r.Cancel()
		return d, false
	}
	return 0, true
}

// address is what failures are counted by: an IPv4 address or an IPv6 /64, which is what one customer gets.
func address(r *http.Request) netip.Prefix {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{} // an in-memory connection: all are one
	}
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
