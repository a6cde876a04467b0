package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"agentd/spool"
)

func TestSpoolMetrics(t *testing.T) {
	c := spoolCollector{func() spool.Stats {
		return spool.Stats{
			Batches: 3, Bytes: 300, Epochs: 2, DiskUsed: 1000, DiskFree: 5000, DiskTotal: 9000, Full: true, Appended: 7, AppendedBytes: 700,
			Corrupt: 1, Quarantined: 40, DeadLetters: 2,
			Commits: spool.Histogram{Bounds: []float64{0.1, 1}, Counts: []uint64{4, 2, 1}, Sum: 3.5},
		}
	}}
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		"agentd_spool_batches 3", "agentd_spool_bytes 300", "agentd_spool_epochs 2", "agentd_spool_disk_used_bytes 1000",
		"agentd_spool_disk_free_bytes 5000", "agentd_spool_disk_size_bytes 9000", "agentd_spool_full 1", "agentd_spool_quarantine_bytes 40",
		"agentd_spool_dead_letters 2", "agentd_spool_appended_batches_total 7", "agentd_spool_appended_bytes_total 700",
		"agentd_spool_corrupt_batches_total 1", `agentd_spool_fsync_seconds_bucket{le="0.1"} 4`, `agentd_spool_fsync_seconds_bucket{le="1"} 6`,
		`agentd_spool_fsync_seconds_bucket{le="+Inf"} 7`, "agentd_spool_fsync_seconds_sum 3.5", "agentd_spool_fsync_seconds_count 7",
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("%q is missing in\n%s", want, w.Body)
		}
	}
}
