// Package exec runs one command as one attempt of a job, and promises that nothing which the command
// started outlives the attempt: background processes, double forks and new sessions included.
//
// # Who is who
//
//	agent ──control socket── shim ── command ── whatever it starts
//	                          (subreaper)       └ in a cgroup of its own, where cgroup v2 was delegated
//
// Each attempt has a shim: this same binary, started again (Main). It is a child subreaper, so that every process of the job
// which loses its parent becomes the shim's child: the tree below the shim is all of the job, and when the shim has no child
// left (ECHILD) the job has ended. The shim waits for the go-ahead before it starts anything; by then the journal knows it.
//
//	waiting ──start──► running ──main process ends──► settling ──no child left──► gone
//	   │                  │  signal, kill                 │ signal, kill
//	   └── control socket closes: exit                    └── control socket closes: kill all, exit
//
// # Why nothing is left
//
//   - The attempt ends by itself: what is still there after the pipes came to their end, or after PipeWait, gets StopSignal, then SIGKILL.
//   - It is cancelled or times out: StopSignal (and SIGCONT) to every process of the tree, the grace period, SIGKILL. The grace period is the
//     tree's, not the main process's: a handler in a background process has all of it.
//   - SIGKILL is cgroup.kill, which is atomic, and rounds over the tree below the shim, by process group and by pid, until ECHILD. Without a
//     cgroup a storm of forks each in a new session could outrun the rounds for a while; nothing else can.
//   - The agent dies: the socket closes, and the shim kills the tree. The main process has the shim's death as its own (PDEATHSIG).
//   - The shim dies (killed by the job or by hand, or with the agent): the agent, or the next agent's Sweep, kills the cgroup, and whoever
//     has the attempt's work directory (unique, random) in the environment it was started with. Here is the one gap: without cgroups, a process that
//     lost its shim by SIGKILL *and* cleaned its environment is not found. With cgroups there is none.
//   - The shim is stopped or stuck: after assaultEvery the agent does the killing itself.
//   - Something can't be killed (a tracer holds it, a disk doesn't answer): after KillWait Run returns and says so, the slot is free,
//     and the runner tries again with each later Run and Sweep.
//
// Where /proc shows only what its reader may trace (ProtectProc=invisible, as in the packages' unit), a process that keeps its memory to
// itself is not seen there. The cgroup lists it all the same: it gets the signals, too.
//
// A process is only ever killed when it is the attempt's beyond doubt; after a crash pid, start time and boot id have to match,
// and a pidfd pins the process down before it is asked who it is.
//
// # Output
//
// The readers get the pipes themselves. An end of file is certain once no process holds the write end (POLLHUP), so that then the
// last line is waited for, however slow the reader is. A pipe that a process outside of the tree holds is abandoned, with a remark.
//
// # Limits
//
// Memory, processes and CPU are limited where the cgroup has the controllers; elsewhere attempts run without, and the log says so once.
// The environment is built from an allow-list; a job's own variables may not choose what code the command loads. This is no sandbox:
// without `user:` a job may do to the agent what the agent's user may.
package exec
