package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"agentd/spool"
)

// spoolCollector exports the spool's figures. It is here because the spool knows nothing of ours, metrics included.
type spoolCollector struct{ stats func() spool.Stats }

func spoolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("agentd_spool_"+name, help, nil, nil)
}

var (
	spoolBatches     = spoolDesc("batches", "Batches that wait in the spool.")
	spoolBytes       = spoolDesc("bytes", "Their size as stored.")
	spoolEpochs      = spoolDesc("epochs", "Epochs on disk.")
	spoolUsed        = spoolDesc("disk_used_bytes", "Disk that the spool takes, preallocation and quarantine included.")
	spoolFree        = spoolDesc("disk_free_bytes", "What the file system has left.")
	spoolSize        = spoolDesc("disk_size_bytes", "Size of the file system.")
	spoolFull        = spoolDesc("full", "1 while the spool takes no batches for lack of space.")
	spoolQuarantine  = spoolDesc("quarantine_bytes", "What could not be read and was put aside.")
	spoolDeadLetters = spoolDesc("dead_letters", "Dead letters that are kept.")
	spoolAppended    = spoolDesc("appended_batches_total", "Batches made durable.")
	spoolAppendedTo  = spoolDesc("appended_bytes_total", "Their size as stored.")
	spoolCorrupt     = spoolDesc("corrupt_batches_total", "Batches found damaged.")
	spoolFsync       = spoolDesc("fsync_seconds", "How long group commits took, fsync included.")
)

// Describe implements prometheus.Collector.
func (c spoolCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		spoolBatches, spoolBytes, spoolEpochs, spoolUsed, spoolFree, spoolSize, spoolFull, spoolQuarantine, spoolDeadLetters,
		spoolAppended, spoolAppendedTo, spoolCorrupt, spoolFsync,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c spoolCollector) Collect(out chan<- prometheus.Metric) {
	st := c.stats()
	full := 0.0
	if st.Full {
		full = 1
	}
	for d, v := range map[*prometheus.Desc]float64{
		spoolBatches: float64(st.Batches), spoolBytes: float64(st.Bytes), spoolEpochs: float64(st.Epochs),
		spoolUsed: float64(st.DiskUsed), spoolFree: float64(st.DiskFree), spoolSize: float64(st.DiskTotal), spoolFull: full,
		spoolQuarantine: float64(st.Quarantined), spoolDeadLetters: float64(st.DeadLetters),
	} {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	for d, v := range map[*prometheus.Desc]uint64{
		spoolAppended: st.Appended, spoolAppendedTo: st.AppendedBytes, spoolCorrupt: st.Corrupt,
	} {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	below, buckets := uint64(0), map[float64]uint64{}
	for i, bound := range st.Commits.Bounds {
		below += st.Commits.Counts[i]
		buckets[bound] = below
	}
	all := below + st.Commits.Counts[len(st.Commits.Bounds)]
	out <- prometheus.MustNewConstHistogram(spoolFsync, all, st.Commits.Sum, buckets)
}
