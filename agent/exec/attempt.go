package exec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"agentd/agent/protocol"
)

// attempt is one call of Run, and belongs to its goroutine; only control is read by another.
type attempt struct {
	r    *Runner
	spec Spec
	log  *zap.Logger

	user   *account // nil = the agent's own
	dir    *workDir
	cgroup string
	path   string // of the command
	env    []string

	shim     *os.Process
	control  *os.File
	orders   *json.Encoder
	proc     Proc
	out, err *pipe

	startedAt time.Time
	endedAt   time.Time // of the main process
	failed    *failed
	exited    *exited
	cause     error
	killed    bool // by us, before the main process had ended by itself
	shimGone  bool
	empty     bool       // the shim said that the tree has ended
	left      []procStat // what could not be killed
	held      []procStat // dead, but a tracer keeps the exit status
	oomBefore int64
}

func (a *attempt) run(ctx context.Context) Result {
	begin := time.Now()
	notStarted := func(code int, err error) Result {
		res := Result{
			Outcome: protocol.Failed, ExitCode: code, NotStarted: true, Error: "could not start: " + err.Error(),
			StartedAt: begin, FinishedAt: time.Now(),
		}
		if a.spec.Exited != nil {
			a.spec.Exited(res)
		}
		return res
	}
	endedBefore := func(cause error) Result {
		res := Result{
			Outcome: protocol.Cancelled, NotStarted: true, Error: "ended before it started: " + cause.Error(),
			Cause: cause, StartedAt: begin, FinishedAt: time.Now(),
		}
		if a.spec.Exited != nil {
			a.spec.Exited(res)
		}
		return res
	}
	if cause := context.Cause(ctx); cause != nil {
		return endedBefore(cause)
	}
	name := uniqueName(a.spec.JobID, a.spec.Attempt)
	a.r.setLive(name, true)
	defer a.r.setLive(name, false)
	if code, err := a.prepare(name); err != nil {
		a.clean()
		return notStarted(code, err)
	}
	if err := a.launch(); err != nil {
		a.clean()
		return notStarted(exitNotExecutable, err)
	}
	var copiers sync.WaitGroup
	copiers.Go(func() { a.out.copy(a.spec.Stdout) })
	copiers.Go(func() { a.err.copy(a.spec.Stderr) })
	startErr := a.supervise(ctx)

	var res Result
	switch {
	case startErr != nil && a.cause != nil:
		res = endedBefore(a.cause)
	case startErr != nil:
		res = notStarted(exitNotExecutable, startErr)
	case a.failed != nil:
		code, err := a.explain(a.failed, a.path)
		res = notStarted(code, err)
	default:
		res = a.result()
		if a.spec.Exited != nil {
			a.spec.Exited(res)
		}
	}
	a.finishPipes()
	copiers.Wait()
	a.out.read.Close()
	a.err.read.Close()
	a.clean()
	return res
}

// prepare makes what the shim needs; what it made before a fault is for clean to remove.
func (a *attempt) prepare(name string) (int, error) {
	s := &a.spec
	if !validID(s.JobID) || s.Attempt < 0 {
		return exitNotExecutable, fmt.Errorf("%q is not a job id", s.JobID)
	}
	if err := checkJobEnv(s.Env); err != nil {
		return exitNotExecutable, err
	}
	if len(s.Command) == 0 {
		return exitNotFound, errors.New("no command: the handler's `command` is empty")
	}
	if s.StopSignal == 0 {
		s.StopSignal = syscall.SIGTERM
	}
	var err error
	if s.User != "" {
		if a.user, err = lookupUser(s.User); err != nil {
			return exitNotExecutable, err
		}
	}
	if a.dir, err = a.r.makeWorkDir(name, a.user); err != nil {
		return exitNotExecutable, fmt.Errorf("work directory: %w", err)
	}
	a.env = a.environ()
	var code int
	if a.path, code, err = findCommand(s.Command[0], lookup(a.env, "PATH")); err != nil {
		return code, err
	}
	if a.r.cg.base != "" {
		if a.cgroup, err = a.r.cg.make(name, s.Limits); err != nil {
			return exitNotExecutable, fmt.Errorf("cgroup: %w", err)
		}
	}
	a.warnOfLimits()
	return 0, nil
}

// warnOfLimits says once that limits were asked for and don't hold here.
func (a *attempt) warnOfLimits() {
	l, cg := a.spec.Limits, &a.r.cg
	if (l.Memory > 0 && !cg.has("memory")) || (l.Pids > 0 && !cg.has("pids")) || (l.CPUs > 0 && !cg.has("cpu")) {
		a.r.limitsOnce.Do(func() {
			a.log.Warn("Limits are not enforced on this host", zap.Strings("enforced", cg.controllers), zap.String("missing", cg.why))
		})
	}
}

// launch starts the shim, which waits for its orders.
func (a *attempt) launch() error {
	var err error
	stdin := a.spec.StdinFile
	if stdin == nil {
		if stdin, err = payload(a.spec.Stdin); err != nil {
			return err
		}
		defer stdin.Close()
	}
	if a.out, err = openPipe(a.user); err != nil {
		return err
	}
	defer a.out.write.Close()
	if a.err, err = openPipe(a.user); err != nil {
		a.out.read.Close()
		return err
	}
	defer a.err.write.Close()
	if err := a.startShim(stdin); err != nil {
		a.out.read.Close()
		a.err.read.Close()
		return fmt.Errorf("supervisor: %w", err)
	}
	return nil
}

func (a *attempt) startShim(stdin *os.File) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	_ = unix.SetNonblock(fds[0], true)
	a.control = os.NewFile(uintptr(fds[0]), "control")
	a.orders = json.NewEncoder(a.control)
	theirs := os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	files := []*os.File{stdin, a.out.write, a.err.write, theirs}
	if a.cgroup != "" {
		dir, err := os.Open(a.cgroup)
		if err != nil {
			a.control.Close()
			return err
		}
		defer dir.Close()
		files = append(files, dir)
	}
	a.oomBefore = oomKills()
	// /proc/self/exe is this very program, also after an upgrade has put another file in its place.
	a.shim, err = os.StartProcess("/proc/self/exe", []string{shimName, fmt.Sprintf("%s/%d", a.spec.JobID, a.spec.Attempt)}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1"}, // it only waits; the job gets its own environment with the order to start
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true}, // out of reach of a terminal's Ctrl-C
	})
	if err != nil {
		a.control.Close()
		return err
	}
	stat, err := statOfChild(a.shim.Pid)
	if err != nil {
		a.control.Close() // ends the shim
		_, _ = a.shim.Wait()
		return err
	}
	a.proc = Proc{PID: a.shim.Pid, StartTicks: stat.startTicks, BootID: a.r.bootID, Cgroup: a.cgroup, WorkDir: a.dir.path}
	return nil
}

// send gives the shim an order. One that can't take it (stopped, dead) is found out by what then doesn't happen.
func (a *attempt) send(o order) {
	const enough = time.Second // the socket takes an order at once unless nobody has read for a long time
	_ = a.control.SetWriteDeadline(time.Now().Add(enough))
	_ = a.orders.Encode(o)
}

func (a *attempt) remarkf(format string, args ...any) {
	if a.spec.Remark != nil {
		a.spec.Remark(fmt.Sprintf(format, args...))
	}
}

// finishPipes waits for the readers' last bytes.
func (a *attempt) finishPipes() {
	// PipeWait has passed for whoever was alive then; the rest of five seconds is for a pipe that left the tree.
	ended := a.endedAt
	if ended.IsZero() {
		ended = time.Now()
	}
	deadline := ended.Add(a.r.cfg.PipeWait + 2*straggleWait)
	for _, p := range []*pipe{a.out, a.err} {
		if p.finish(deadline) {
			a.remarkf("A process outside of the job kept its output open; what it still prints is not read.")
		}
	}
}

// clean gives back what the attempt used on the host. What can't be removed now is tried again later.
func (a *attempt) clean() {
	if a.dir == nil {
		return
	}
	a.dir.close()
	proc := a.proc
	proc.Cgroup, proc.WorkDir = a.cgroup, a.dir.path
	if len(a.left) > 0 {
		a.r.addRemain(remain{proc: proc, procs: a.left})
		return
	}
	if a.spec.KeepWorkDir {
		if path, err := a.r.keep(a.dir); err == nil {
			a.remarkf("The work directory was kept: %s", path)
		} else {
			a.log.Warn("Work directory was not kept", zap.Error(err))
		}
	}
	if err := a.r.discard(proc, time.Now().Add(removeWait)); err != nil {
		a.log.Warn("An attempt's leavings could not be removed", zap.Error(err))
		a.r.addRemain(remain{proc: proc})
	}
}

// discard removes an attempt's cgroup and work directory.
func (r *Runner) discard(p Proc, deadline time.Time) error {
	var errs []error
	if p.Cgroup != "" {
		const short = 500 * time.Millisecond // an empty cgroup goes at once; see removeCgroup
		errs = append(errs, removeCgroup(p.Cgroup, time.Now().Add(short)))
	}
	if p.WorkDir != "" {
		errs = append(errs, removeTree(r.cfg.WorkRoot, filepath.Base(p.WorkDir), deadline))
	}
	return errors.Join(errs...)
}
