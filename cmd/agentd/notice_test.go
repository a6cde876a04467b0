package main

import (
	"testing"

	"agentd/agent"
	"agentd/shipper"
)

func TestNoticeSaysInAFewWordsWhatWaits(t *testing.T) {
	for want, c := range map[string]struct {
		st      agent.Status
		spooled int64
	}{
		"polling; 0 jobs":                    {agent.Status{State: "working"}, 0},
		"polling; 2 jobs; 12 MB waiting":     {agent.Status{State: "working", Running: 2}, 12_300_000},
		"polling; 1 job; 1 kB waiting":       {agent.Status{State: "working", Running: 1}, 1},
		"stopping; 0 jobs; 2.5 GB waiting":   {agent.Status{State: "stopping"}, 2_500_000_000},
		"drained; 0 jobs; 1 outcome waiting": {agent.Status{State: "drained", Reporting: 1}, 0},
		"polling; 1 job; 15 MB waiting; control plane not reachable: refused": {agent.Status{
			State: "working", Running: 1, Logs: shipper.Stats{Memory: 40, MemoryUsed: 5_000_000},
			Faults: []string{"control plane not reachable: refused"},
		}, 10_000_000},
		// Pages of a job that has nothing unshipped are in use, but nothing in them waits.
		"polling; 3 jobs": {agent.Status{State: "working", Running: 3, Logs: shipper.Stats{MemoryUsed: 5_000_000}}, 0},
	} {
		if got := notice(&c.st, c.spooled); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
