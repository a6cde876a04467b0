package exec

// Holds says whether pid is a process of the attempt that p describes: the shim or below it. The shim is a subreaper, so
// whoever is of the tree has a chain of parents that ends there. Of a pid that ended, and was given out
// again to the attempt meanwhile, it would say yes: ask about a process that waits for the answer.
func (p Proc) Holds(pid int) bool {
	const deepest = 1 << 12 // more generations than anybody nests, so that a chain that changes while it is walked comes to an end
	for range deepest {
		stat, err := readStat(pid)
		if err != nil || stat.dead() {
			return false
		}
		if pid == p.PID {
			return stat.startTicks == p.StartTicks
		}
		if pid = stat.ppid; pid <= 1 {
			return false
		}
	}
	return false
}
