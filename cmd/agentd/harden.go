package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// keepFromDisk makes this process's memory, which holds keys, queries and unredacted output, unreadable for other processes of
// its user, and writes no core file of it. Jobs are to have the limit that the agent was started with: it is returned.
func keepFromDisk() (coreLimit uint64, err error) {
	err = os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	var core unix.Rlimit
	if e := unix.Getrlimit(unix.RLIMIT_CORE, &core); e != nil {
		return 0, errors.Join(err, os.NewSyscallError("getrlimit", e))
	}
	none := unix.Rlimit{Cur: 0, Max: core.Max}
	return core.Cur, errors.Join(err, os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_CORE, &none)))
}
