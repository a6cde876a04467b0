package agent

import "github.com/prometheus/client_golang/prometheus"

// Collector exports how the agent stands as metrics.
func (a *Agent) Collector() prometheus.Collector { return &collector{a: a} }

type collector struct{ a *Agent }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("agentd_"+name, help, labels, nil)
}

// Describe sends nothing: the metrics are made of each status, so the registry checks them as they come.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect makes metrics of the present status.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.a.Status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	flag := map[bool]float64{true: 1}
	gauge(desc("healthy", "1 while nothing is wrong."), flag[s.Healthy])
	gauge(desc("state", "1 for the state that the agent is in.", "state"), 1, s.State)
	gauge(desc("jobs_running", "Slots taken by attempts."), float64(s.Running))
	gauge(desc("jobs_max", "Slots."), float64(s.MaxJobs))
	gauge(desc("completions_waiting", "Outcomes that the control plane has not acknowledged."), float64(s.Reporting))
	gauge(desc("poll_wait_seconds", "How long polls ask to be held."), s.Polls.Wait.Seconds())
	gauge(desc("polls_failed_in_a_row", "Polls since the last answer."), float64(s.Polls.Failing))
	gauge(desc("heartbeat_lateness_seconds", "Of the last answered heartbeat."), s.Lateness.Last.Seconds())
	gauge(desc("heartbeat_lateness_worst_seconds", "Since the start."), s.Lateness.Worst.Seconds())
	counter := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	counter(desc("polls_answered_total", "Polls that were answered."), float64(s.Polls.Count))
	counter(desc("heartbeats_answered_total", "Heartbeats that were answered."), float64(s.Lateness.Count))
	if logs, ok := c.a.logs.(interface{ Collector() prometheus.Collector }); ok { // not among fakes
		logs.Collector().Collect(out)
	}
}
