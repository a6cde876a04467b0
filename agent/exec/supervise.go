package exec

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// settleWait is how long the last processes may take to follow the main one before they are told to: a pipeline's
	// other members end a moment later, and a signal would be rude.
	settleWait = 20 * time.Millisecond
	// straggleWait is what background processes get to end by themselves once they are told to. Short: the main process
	// has ended, nobody waits for them, and the attempt must end within five seconds of it.
	straggleWait = 250 * time.Millisecond
	// assaultEvery is how often the agent itself goes after what the shim should have killed by now.
	assaultEvery = 100 * time.Millisecond
)

// watch is the state of supervise's loop: what it waits for. A nil channel is waited for by nobody.
type watch struct {
	a       *attempt
	done    <-chan struct{}
	hurry   <-chan struct{}
	pipes   <-chan struct{}
	timeout <-chan time.Time
	held    <-chan time.Time // PipeWait
	settle  <-chan time.Time
	kill    <-chan time.Time // grace or straggleWait
	assault <-chan time.Time
	giveUp  <-chan time.Time
	killing bool
	clear   int // looks in a row that found nothing alive
	over    bool
}

// supervise gives the order to start and returns when the tree has ended or was given up. An error: it was never started.
func (a *attempt) supervise(ctx context.Context) error {
	defer a.reapShim()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer a.control.Close()
	if a.spec.Started != nil {
		if err := a.spec.Started(a.proc); err != nil {
			return err
		}
	}
	if a.cause = context.Cause(ctx); a.cause != nil {
		return a.cause
	}
	a.send(order{Start: a.startOrder()})
	reports := make(chan report)
	wg.Go(func() {
		defer close(reports)
		for dec := json.NewDecoder(a.control); ; {
			var r report
			if dec.Decode(&r) != nil {
				return
			}
			reports <- r
		}
	})
	pipes := make(chan struct{})
	stop := make(chan struct{})
	wg.Go(func() {
		for _, p := range []*pipe{a.out, a.err} {
			select {
			case <-p.done:
			case <-stop:
				return
			}
		}
		close(pipes)
	})
	defer close(stop)

	w := &watch{a: a, done: ctx.Done(), pipes: pipes}
	for in := (<-chan report)(reports); !w.over; {
		select {
		case r, ok := <-in:
			if !ok {
				in, a.shimGone = nil, true
				w.shimGone()
				break
			}
			w.report(r)
		case <-w.done:
			w.done = nil
			w.end(context.Cause(ctx))
		case <-w.timeout:
			w.end(ErrTimedOut)
		case <-w.hurry:
			w.startKilling()
		case <-w.pipes:
			w.pipes = nil
			w.settleSoon()
		case <-w.held:
			a.remarkf("The main process ended, but a process that it left behind kept the output open; it is ended now.")
			w.settleSoon()
		case <-w.settle:
			w.endStragglers()
		case <-w.kill:
			w.startKilling()
		case <-w.assault:
			w.look()
		case <-w.giveUp:
			a.left = a.alive()
			w.over = true
		}
	}
	// Bounded: a shim that doesn't end by itself is killed below.
	const shimExit = 2 * time.Second
	_ = a.control.SetReadDeadline(time.Now().Add(shimExit))
	if a.left != nil || a.held != nil {
		_ = a.control.SetReadDeadline(time.Now())
	}
	for range reports {
		continue // the reader ends with the socket
	}
	return nil
}

func (a *attempt) startOrder() *startOrder {
	o := &startOrder{
		Path: a.path, Args: a.spec.Command, Env: a.env, Dir: a.dir.path,
		OOMScoreAdj: oomScore, Cgroup: a.cgroup, CoreLimit: a.r.cfg.CoreLimit,
	}
	if a.user != nil {
		o.Credential = &a.user.cred
	}
	return o
}

func (w *watch) report(r report) {
	a := w.a
	switch {
	case r.Started > 0:
		a.startedAt = time.Now()
		if a.spec.Timeout > 0 && a.cause == nil {
			w.timeout = time.After(a.spec.Timeout)
		}
		a.log.Debug("Command was started", zap.Int("pid", r.Started))
	case r.Failed != nil:
		a.failed = r.Failed
	case r.Exited != nil:
		a.exited, a.endedAt = r.Exited, time.Now()
		w.timeout = nil
		if a.cause != nil {
			break // the others have the rest of the grace period
		}
		if w.pipes == nil {
			w.settleSoon()
		} else {
			w.held = time.After(a.r.cfg.PipeWait)
		}
	case r.Empty:
		a.empty, w.over = true, true
	}
}

// end begins the end that cause asks for: a signal to the whole tree, then SIGKILL after the grace period.
func (w *watch) end(cause error) {
	a := w.a
	w.timeout = nil
	if a.exited != nil || a.cause != nil || w.killing {
		w.settleSoon()
		return
	}
	a.cause = cause
	grace := a.spec.Grace
	if a.spec.GraceFor != nil {
		grace = a.spec.GraceFor(cause)
	}
	a.log.Info("Job is ended", zap.NamedError("cause", cause), zap.Duration("grace", grace))
	a.send(order{Signal: int(a.spec.StopSignal)})
	if grace <= 0 {
		w.startKilling()
		return
	}
	w.kill = time.After(grace)
	w.hurry = a.spec.Hurry
}

// settleSoon is called when nothing more is to be expected of the main process: it has ended by itself, and its pipes
// have as well, or have been waited for.
func (w *watch) settleSoon() {
	if w.a.exited == nil || w.a.cause != nil || w.settle != nil || w.killing {
		return
	}
	w.held = nil
	w.settle = time.After(settleWait)
}

func (w *watch) endStragglers() {
	if w.killing || w.kill != nil {
		return
	}
	w.a.remarkf("Processes that the job left behind in the background are ended.")
	w.a.send(order{Signal: int(w.a.spec.StopSignal)})
	w.kill = time.After(straggleWait)
}

func (w *watch) startKilling() {
	w.kill, w.hurry = nil, nil
	if w.killing {
		return
	}
	w.killing = true
	a := w.a
	a.killed = a.exited == nil
	if a.cgroup != "" {
		_ = killCgroup(a.cgroup)
	}
	a.send(order{Kill: true})
	w.assault = time.After(assaultEvery)
	w.giveUp = time.After(a.r.cfg.KillWait)
}

// shimGone: the shim has ended. After its last report that is as it should be; before, somebody killed it.
func (w *watch) shimGone() {
	a := w.a
	if a.failed != nil {
		w.over = true
		return
	}
	a.log.Warn("Job's supervisor was killed; its processes are killed")
	wasKilled := a.killed
	w.startKilling()
	a.killed = wasKilled // the main process died with the shim, or before
	w.assault = time.After(0)
}

// look goes after the tree without the shim's help: it may be stopped, or dead.
func (w *watch) look() {
	a := w.a
	alive := a.alive()
	if len(alive) > 0 {
		w.clear = 0
		killAll(alive, os.Getpid())
		if a.cgroup != "" {
			_ = killCgroup(a.cgroup)
		}
	} else {
		w.clear++
	}
	// Twice: a process that forked while the list was made shows in the next one.
	const certain = 2
	if w.clear >= certain {
		if !a.shimGone {
			a.held, _ = descendants(a.shim.Pid)
		}
		w.over = true
		return
	}
	w.assault = time.After(assaultEvery)
}

// alive are the attempt's living processes, found in every way there is.
func (a *attempt) alive() []procStat {
	byPID := make(map[int]procStat)
	add := func(procs []procStat) {
		for _, p := range living(procs) {
			byPID[p.pid] = p
		}
	}
	if !a.shimGone {
		procs, _ := descendants(a.shim.Pid)
		add(procs)
	} else {
		add(carriers("AGENTD_WORK_DIR=" + a.dir.path))
	}
	if a.cgroup != "" {
		add(cgroupProcs(a.cgroup))
	}
	var all []procStat
	for _, p := range byPID {
		all = append(all, p)
	}
	return all
}

// reapShim fetches the shim's exit status; the control socket is closed, so that it ends, and if it doesn't it is killed.
func (a *attempt) reapShim() {
	const patience = 2 * time.Second
	if a.left != nil || a.held != nil {
		_ = a.shim.Kill()
	}
	deadline := time.Now().Add(patience)
	err := retry(deadline, func() error {
		s, err := readStat(a.shim.Pid)
		if err == nil && !s.dead() {
			if time.Until(deadline) < patience/2 {
				_ = a.shim.Kill()
			}
			return fmt.Errorf("supervisor %d is alive", a.shim.Pid)
		}
		return nil
	})
	if err != nil || tracerOf(a.shim.Pid) != 0 {
		a.log.Warn("Job's supervisor could not be ended", zap.Int("pid", a.shim.Pid), zap.Error(err))
		_ = a.shim.Release()
		return
	}
	_, _ = a.shim.Wait()
}
