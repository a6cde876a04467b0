package exec

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Main is the entry of the shim that supervises one job: a program that uses this package calls it first thing in main,
// and test binaries in TestMain. It does nothing unless the process was started as the shim; else it doesn't return.
func Main() {
	if len(os.Args) == 0 || os.Args[0] != shimName {
		return
	}
	os.Exit(shimMain())
}

// shim is the state of the shim process; its one loop owns all of it.
type shim struct {
	reports *json.Encoder
	main    int  // pid of the main process; 0 before it was started
	exited  bool // the main process
	killing bool
	cgroup  string // where the job lives; empty = none
}

func shimMain() int {
	// The job's parent-death signal belongs to the thread that forks, so that thread has to live as long as the shim.
	runtime.LockOSThread()
	closeAllOnExec()
	heedIgnored()
	_ = os.WriteFile("/proc/self/comm", []byte("job-shim"), 0) // so that `killall agentd` means the agent
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "agentd: child subreaper:", err)
		return 1
	}
	// Nothing but the control socket ends a shim: a Ctrl-C or a service manager's SIGTERM is for the agent to act on.
	// Caught and thrown away instead of ignored, because ignoring is inherited by the job.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)

	_ = unix.SetNonblock(controlFD, true) // so that closing it wakes the reader
	control := os.NewFile(controlFD, "control")
	orders := make(chan order)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(orders)
		for dec := json.NewDecoder(control); ; {
			var o order
			if dec.Decode(&o) != nil {
				return // the agent is gone
			}
			orders <- o
		}
	})
	s := &shim{reports: json.NewEncoder(control)}
	s.loop(orders, signals)
	control.Close()
	for range orders {
		continue // unblocks the reader
	}
	wg.Wait()
	return 0
}

// closeAllOnExec keeps from the job what it has no business with: the control socket above all, and whatever the agent's own
// parent left open in it.
func closeAllOnExec() {
	if unix.CloseRange(controlFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	unix.CloseOnExec(controlFD) // before Linux 5.11
	unix.CloseOnExec(cgroupFD)
}

// sweepMin and sweepMax are the pauses between two looks at a tree that should end: short first, since most trees
// are gone after one round; never so long that an ending waits for it, never so short that a stuck process costs CPU.
const (
	sweepMin = time.Millisecond
	sweepMax = 50 * time.Millisecond
)

func (s *shim) loop(orders <-chan order, signals <-chan os.Signal) {
	pause := sweepMin
	var tick <-chan time.Time
	for {
		select {
		case o, ok := <-orders:
			if !ok {
				if s.main == 0 {
					return // never started: nothing to end
				}
				orders, s.killing = nil, true
				s.killCgroup()
				break
			}
			if !s.obey(o) {
				return
			}
		case <-signals:
		case <-tick:
		}
		if s.main == 0 {
			continue
		}
		if s.reap() {
			_ = s.reports.Encode(report{Empty: true}) // nobody reads it when the agent is gone
			return
		}
		tick = nil
		if s.killing {
			if procs, err := descendants(os.Getpid()); err == nil {
				killAll(procs, unix.Getpgrp())
			}
		}
		// Once the main process is gone, look again by time, too: a child made by clone without an exit signal sends none.
		if s.killing || s.exited {
			tick = time.After(pause)
			pause = min(2*pause, sweepMax)
		}
	}
}

// obey carries out one order; false ends the shim.
func (s *shim) obey(o order) bool {
	switch {
	case o.Start != nil:
		pid, err := start(o.Start)
		if err != nil {
			errno, _ := errors.AsType[syscall.Errno](err)
			_ = s.reports.Encode(report{Failed: &failed{Errno: int(errno), Error: err.Error()}})
			return false
		}
		s.main, s.cgroup = pid, o.Start.Cgroup
		letGo()
		_ = s.reports.Encode(report{Started: pid})
	case o.Kill:
		s.killing = true
	case o.Signal > 0:
		if procs, err := descendants(os.Getpid()); err == nil {
			procs = append(procs, hidden(s.cgroup, procs)...)
			signalAll(procs, unix.Signal(o.Signal))
			signalAll(procs, unix.SIGCONT) // a stopped process gets the signal only when it goes on
		}
	}
	return true
}

// reap fetches every exit status there is; true = no process of the tree is left.
func (s *shim) reap() bool {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // ECHILD
			return true
		case pid == 0:
			return false
		}
		if pid != s.main || s.exited {
			continue
		}
		s.exited = true
		e := exited{Code: status.ExitStatus()}
		if status.Signaled() {
			e = exited{Signal: int(status.Signal())}
		}
		_ = s.reports.Encode(report{Exited: &e})
	}
}

func (s *shim) killCgroup() {
	if s.cgroup != "" {
		_ = os.WriteFile(s.cgroup+"/cgroup.kill", []byte("1"), 0) // the walk over the tree follows anyway
	}
}

// start forks the command. What the job is to inherit and SysProcAttr can't set (oom_score_adj; the cgroup where clone3
// is forbidden) the shim takes on itself for the moment of the fork.
func start(o *startOrder) (int, error) {
	restore := raiseOOMScore(o.OOMScoreAdj)
	defer restore()
	if o.CoreLimit > 0 {
		noCore := allowCore(o.CoreLimit)
		defer noCore()
	}
	sys := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if c := o.Credential; c != nil {
		sys.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID, Groups: c.Groups}
	}
	attr := &syscall.ProcAttr{Dir: o.Dir, Env: o.Env, Files: []uintptr{0, 1, 2}, Sys: sys}
	if o.Cgroup == "" {
		return syscall.ForkExec(o.Path, o.Args, attr) //nolint:gosec // the handler's configured command
	}
	sys.UseCgroupFD, sys.CgroupFD = true, cgroupFD
	pid, err := syscall.ForkExec(o.Path, o.Args, attr) //nolint:gosec // as above
	// A seccomp filter that can't look into clone3's arguments answers ENOSYS or EPERM (systemd's RestrictNamespaces= does).
	if !errors.Is(err, syscall.ENOSYS) && !errors.Is(err, syscall.EPERM) {
		return pid, err
	}
	sys.UseCgroupFD = false
	home, err := ownCgroupDir()
	if err != nil {
		return 0, err
	}
	if err := enterCgroup(o.Cgroup); err != nil {
		return 0, err
	}
	pid, err = syscall.ForkExec(o.Path, o.Args, attr) //nolint:gosec // as above
	_ = enterCgroup(home)                             // else the shim dies with cgroup.kill, and the agent makes do without its report
	return pid, err
}

// raiseOOMScore makes the kernel prefer this process, and what it forks, when memory runs out. The way back down to
// where it was needs no privilege.
func raiseOOMScore(to int) func() {
	const file = "/proc/self/oom_score_adj"
	data, err := os.ReadFile(file)
	if err != nil {
		return func() {}
	}
	was, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || was >= to || os.WriteFile(file, []byte(strconv.Itoa(to)), 0) != nil {
		return func() {}
	}
	return func() { _ = os.WriteFile(file, data, 0) } //nolint:gosec // what was read there before. Else the shim is a likely victim, too: the tree is killed then
}

// allowCore gives what is forked next its limit on core files; the shim, whose memory holds the job's environment, goes without.
func allowCore(limit uint64) func() {
	var was unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &was) != nil {
		return func() {}
	}
	job := unix.Rlimit{Cur: min(limit, was.Max), Max: was.Max}
	if unix.Setrlimit(unix.RLIMIT_CORE, &job) != nil {
		return func() {}
	}
	return func() { _ = unix.Setrlimit(unix.RLIMIT_CORE, &was) }
}

// letGo gives up the shim's own ends of the job's pipes: else they would never come to an end of file.
func letGo() {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	for fd := range 3 {
		if err != nil {
			_ = unix.Close(fd)
			continue
		}
		_ = unix.Dup3(null, fd, 0)
	}
	if err == nil {
		_ = unix.Close(null)
	}
}
