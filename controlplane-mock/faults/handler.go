package faults

import (
	"context"
	"net"
	"net/http"
)

// Handler puts the requests that agentSide picks under the outage, for servers that serve both
// sides on one port: the port stays up, the agents' requests are reset or get no answer, also
// those that are being served as the outage begins. nil picks all.
func (o *Outage) Handler(next http.Handler, agentSide func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if agentSide != nil && !agentSide(r) {
			next.ServeHTTP(w, r)
			return
		}
		d, calm := o.current()
		if d != nil {
			d.swallow(w, r)
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		// Holds end as the outage begins: what they would say nobody hears.
		defer context.AfterFunc(calm, cancel)()
		next.ServeHTTP(guarded{w, calm}, r.WithContext(ctx))
		if calm.Err() != nil {
			if d, _ := o.current(); d != nil {
				d.swallow(w, r)
			}
			reset(w)
		}
	})
}

// swallow is what an outage does to a request. It doesn't return.
func (d *down) swallow(w http.ResponseWriter, r *http.Request) {
	if d.spec.Mode == Blackhole {
		readAhead(r)
		select {
		case <-d.over:
		case <-r.Context().Done():
		}
	}
	reset(w)
}

// guarded lets nothing through once an outage has begun.
type guarded struct {
	http.ResponseWriter
	calm context.Context //nolint:containedctx // an end to be asked about, not a call's own
}

func (g guarded) WriteHeader(status int) {
	if g.calm.Err() == nil {
		g.ResponseWriter.WriteHeader(status)
	}
}

func (g guarded) Write(p []byte) (int, error) {
	if g.calm.Err() != nil {
		return 0, net.ErrClosed
	}
	return g.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController finds.
func (g guarded) FlushError() error {
	if g.calm.Err() != nil {
		return net.ErrClosed
	}
	return http.NewResponseController(g.ResponseWriter).Flush()
}

// Flush is FlushError for those who ask for http.Flusher.
func (g guarded) Flush() { g.FlushError() } //nolint:errcheck // http.Flusher has no way to say

// Unwrap lets handlers set deadlines on the connection.
func (g guarded) Unwrap() http.ResponseWriter { return g.ResponseWriter }
