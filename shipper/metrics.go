package shipper

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"agentd/spool"
)

// Collector exports Stats and the request counters. The caller registers it.
func (s *Shipper) Collector() prometheus.Collector { return collector{s} }

type collector struct{ s *Shipper }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("agentd_log_"+name, help, labels, nil)
}

var (
	descAccepted = desc("records_accepted_total", "Record numbers given out; equals acked + memory + spool + dead + gaps.")
	descAcked    = desc("records_acked_total", "Records that the server has stored.")
	descMemory   = desc("records_memory", "Records that are in memory only.")
	descSpool    = desc("records_spool", "Records that are in the spool and not acknowledged.")
	descDead     = desc("records_dead_total", "Records that were dead-lettered.")
	descGaps     = desc("records_gaps_total", "Records that are lost, by reason.", "reason")
	descBytes    = desc("accepted_bytes_total", "Bytes of accepted records, as NDJSON.")
	descShipped  = desc("shipped_bytes_total", "Bytes of the bodies that the server has stored, as sent.")
	descSize     = desc("queue_size_bytes", "Size of the queue file.")
	descUsed     = desc("queue_used_bytes", "Part of the queue file in use, overhead included.")
	descOldest   = desc("oldest_unshipped_seconds", "Age of the oldest record that the server does not have.")
	descRequests = desc("requests_total", "Requests to the log endpoint, by call and answer.", "call", "code")
	descRetries  = desc("retries_total", "Requests that will be made again.")
	descCorrupt  = desc("corrupt_total", "Bodies that arrived damaged.")
	descRemarks  = desc("remarks_lost_total", "Remarks of the agent that found no room.")
	descLogs     = desc("attempts", "Attempts of which anything is held.")
)

var descs = []*prometheus.Desc{
	descAccepted, descAcked, descMemory, descSpool, descDead, descGaps, descBytes, descShipped, descSize, descUsed, descOldest,
	descRequests, descRetries, descCorrupt, descRemarks, descLogs,
}

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	st := c.s.Stats()
	total := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) { out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	total(descAccepted, st.Accepted)
	total(descAcked, st.Acked)
	gauge(descMemory, float64(st.Memory))
	gauge(descSpool, float64(st.Spool))
	total(descDead, st.Dead)
	total(descBytes, st.AcceptedBytes)
	total(descShipped, c.s.counters.shippedBytes.Load())
	gauge(descSize, float64(st.MemorySize))
	gauge(descUsed, float64(st.MemoryUsed))
	gauge(descOldest, st.OldestUnshipped.Seconds())
	gauge(descLogs, float64(len(st.Attempts)))
	n := &c.s.counters
	total(descRetries, n.retries.Load())
	total(descCorrupt, n.corrupt.Load())
	total(descRemarks, n.remarksLost.Load())
	// Each reason from the start at 0: an alert on an increase doesn't see the first value of a new series.
	gaps := map[string]int64{spool.ReasonCorrupt: 0, spool.ReasonMissing: 0, spool.ReasonSpoolFull: 0, spool.ReasonRemoved: 0}
	n.mu.Lock()
	maps.Copy(gaps, n.gaps)
	requests := maps.Clone(n.requests)
	n.mu.Unlock()
	for _, reason := range slices.Sorted(maps.Keys(gaps)) {
		total(descGaps, gaps[reason], reason)
	}
	for key, v := range requests {
		total(descRequests, v, key[0], key[1])
	}
}
