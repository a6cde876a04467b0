package controlplane

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

type metrics struct {
	handler http.Handler

	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	completions *prometheus.CounterVec

	offers, reaped                            prometheus.Counter
	logRecords, logBytes, logDecoded, logCuts prometheus.Counter
}

func newMetrics(reg *prometheus.Registry, s *Server) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "controlplane", Name: name, Help: help})
	}
	m := &metrics{
		handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "controlplane", Name: "requests_total", Help: "Answered requests by route and status.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "controlplane", Name: "request_seconds", Help: "Time to the end of the answer by route, holds included.",
			// From a lookup in memory to the longest poll.
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 60},
		}, []string{"route"}),
		completions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "controlplane", Name: "completions_total", Help: "Completions acknowledged by outcome, repeats included.",
		}, []string{"outcome"}),
		offers:     counter("offers_total", "Jobs offered to polls, re-offers included."),
		reaped:     counter("reaped_total", "Leases ended because they ran out."),
		logRecords: counter("log_records_total", "Record numbers in acknowledged log batches, repeats included."),
		logBytes:   counter("log_bytes_total", "Bytes of acknowledged log batches as sent."),
		logDecoded: counter("log_decoded_bytes_total", "Bytes of acknowledged log batches decoded."),
		logCuts:    counter("log_trims_total", "Log batches that overlapped with what was stored."),
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "controlplane", Name: "holds", Help: "Requests that wait: polls, heartbeats, followers.",
	}, func() float64 { return float64(s.holds.count()) })
	for _, c := range []prometheus.Collector{
		m.requests, m.seconds, m.completions, m.offers, m.reaped, m.logRecords, m.logBytes, m.logDecoded, m.logCuts, waiting,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (s *Server) serveMetrics(c *call) error {
	c.wrote = true
	s.metrics.handler.ServeHTTP(c.w, c.Request)
	return nil
}

// healthz: the process serves requests.
func (s *Server) healthz(c *call) error {
	return c.answer(http.StatusOK, map[string]string{"status": "ok"})
}

// readyz: it can do work, too.
func (s *Server) readyz(c *call) error {
	select {
	case <-s.stopping:
		return unavailable(time.Second, "the server is shutting down")
	default:
	}
	if err := s.store.Ping(c.ctx()); err != nil {
		return err
	}
	return c.answer(http.StatusOK, map[string]string{"status": "ready"})
}
