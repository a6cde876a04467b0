package exec

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"agentd/agent/protocol"
)

// signalBase is added to a signal's number for the exit code, as shells do.
const signalBase = 128

// result puts together how the attempt ended, once its tree has.
func (a *attempt) result() Result {
	res := Result{StartedAt: a.startedAt, FinishedAt: time.Now(), Cause: a.cause, Remains: len(a.left) > 0}
	if !a.endedAt.IsZero() {
		res.FinishedAt = a.endedAt
	}
	if res.StartedAt.IsZero() {
		res.StartedAt = res.FinishedAt
	}
	var signal unix.Signal
	switch e := a.exited; {
	case e != nil:
		res.ExitCode, signal = e.Code, unix.Signal(e.Signal)
	case a.killed || a.shimGone:
		signal = unix.SIGKILL // nobody could fetch the status, and this is what was sent
	}
	if signal != 0 {
		res.ExitCode, res.Signal = signalBase+int(signal), cmp.Or(unix.SignalName(signal), fmt.Sprintf("SIG%d", signal))
	}
	oom := a.ranOut(signal, res.ExitCode)
	ok := a.exited != nil && res.ExitCode == 0
	var err error
	res.JSON, err = a.dir.result()

	switch {
	case errors.Is(a.cause, ErrTimedOut):
		res.Outcome, res.Error = protocol.TimedOut, fmt.Sprintf("timed out after %s", a.spec.Timeout)
	case ok && err != nil:
		// A success whose result is lost would be believed by whoever waits for the result.
		res.Outcome, res.Error = protocol.Failed, err.Error()
	case ok:
		res.Outcome = protocol.Succeeded
	case a.cause != nil:
		res.Outcome, res.Error = protocol.Cancelled, "ended early: "+a.cause.Error()
	default:
		res.Outcome, res.Error = protocol.Failed, a.failure(res)
	}
	if oom {
		a.remarkf("The kernel killed a process of the job: out of memory.")
		if !ok && a.cause == nil {
			res.OOM = true
			res.Error = "out of memory: " + res.Error
		}
	}
	if err != nil && !ok {
		a.remarkf("%s", err)
	}
	if len(a.left) > 0 {
		res.Error = joinSentences(res.Error, "could not be killed: "+describe(a.left))
	}
	if len(a.held) > 0 {
		res.Error = joinSentences(res.Error, "dead, but held by a tracer: "+describe(a.held))
	}
	return res
}

func (a *attempt) failure(res Result) string {
	switch {
	case res.Signal != "" && a.exited == nil && a.shimGone:
		return "the job's supervisor was killed, and the job with it"
	case res.Signal != "":
		return "killed by " + res.Signal
	default:
		return fmt.Sprintf("exit status %d", res.ExitCode)
	}
}

func joinSentences(first, second string) string {
	if first == "" {
		return second
	}
	return first + "; " + second
}
