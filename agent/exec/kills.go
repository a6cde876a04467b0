package exec

import "path/filepath"

// Kills counts the kernel's OOM kills by which an end of the agent's own process can be told from another SIGKILL.
type Kills struct {
	Agent *int64 `json:"agentOomKills"` // in the agent's own cgroup; nil = it has none that counts
	Host  int64  `json:"hostOomKills"`  // on the whole host
}

// AgentKills reads the counts, in the agent or in a process beside it, such as the service's ExecStopPost=, once it has ended.
func AgentKills() Kills {
	k := Kills{Host: oomKills()}
	own, err := ownCgroupDir()
	if err != nil {
		return k
	}
	// systemd puts processes of a delegated unit beside what the agent made: unit/agent, unit/.control.
	if base := filepath.Base(own); base == leaf || base == ".control" {
		own = filepath.Dir(own)
	}
	return killsIn(filepath.Join(own, leaf), k)
}

func killsIn(dir string, k Kills) Kills {
	const events = "memory.events.local" // not of what is below: jobs have cgroups of their own
	if exists(dir, events) {
		k.Agent = new(cgroupCount(dir, events, "oom_kill"))
	}
	return k
}

// Since says whether there was an OOM kill between before and k: in the agent's own cgroup, where both know it or the
// earlier one didn't have it yet, else on the host.
func (k Kills) Since(before Kills) bool {
	if k.Agent == nil {
		return k.Host > before.Host
	}
	if before.Agent == nil {
		return *k.Agent > 0
	}
	return *k.Agent > *before.Agent
}
