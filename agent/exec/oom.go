package exec

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// oomScore is the job's oom_score_adj: half the scale above a neutral process, so that the kernel prefers the job to the agent
// even when the agent is the larger one, and doesn't prefer it to what the operator marked as worthless (1000).
const oomScore = 500

// oomKills is how many processes the kernel has killed for lack of memory since the host booted.
func oomKills() int64 {
	data, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if rest, ok := strings.CutPrefix(string(line), "oom_kill "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// ranOut says whether the kernel's OOM killer ended a process of the job. Where the job's cgroup counts, its count
// is the answer. Elsewhere it takes both: a SIGKILL that was not ours, and an OOM kill on this host while the job ran.
func (a *attempt) ranOut(signal unix.Signal, exitCode int) bool {
	if a.cgroup != "" && exists(a.cgroup, "memory.events") {
		return cgroupCount(a.cgroup, "memory.events", "oom_kill") > 0
	}
	killed := signal == unix.SIGKILL || exitCode == 128+int(unix.SIGKILL) // the latter: what a shell says of its child
	return killed && !a.killed && oomKills() > a.oomBefore
}
