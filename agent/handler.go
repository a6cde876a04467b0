package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"agentd/agent/exec"
	"agentd/agent/journal"
	"agentd/agent/protocol"
	"agentd/agent/redact"
	"agentd/leasekeeper"
)

// Result is how a handler's work ended.
type Result = exec.Result

// Handler does the jobs of one type. Its methods are called concurrently, once for each attempt.
type Handler interface {
	// Run does one attempt and returns when nothing of it is left. ctx ends, with a cause, when it must end early.
	Run(ctx context.Context, a *Attempt) Result
	// Grace is how long an attempt of job may take to end once ctx has: what an exclusive job's lease reserves.
	Grace(job *protocol.Job) time.Duration
}

// HandlerFunc is a Handler in this process. Nothing can kill it: it must heed its context.
type HandlerFunc func(ctx context.Context, a *Attempt) Result

// Run calls f.
func (f HandlerFunc) Run(ctx context.Context, a *Attempt) Result { return f(ctx, a) }

// Grace is the job's own.
func (f HandlerFunc) Grace(job *protocol.Job) time.Duration { return job.Grace.Duration() }

// Attempt is what a handler gets.
type Attempt struct {
	Job   *protocol.Job // not to be changed
	Hurry <-chan struct{}

	agent      *Agent
	log        jobLog
	keeper     *leasekeeper.Keeper
	secrets    *redact.Set
	secretVars []string // names of variables whose values are secrets, too
}

// Stream takes output: it reads a pipe until EOF, and blocks while there is no room for more. Secrets are replaced
// before anything is kept. One goroutine at a time for each stream.
func (a *Attempt) Stream(s protocol.Stream) io.ReaderFrom { return a.secrets.Filter(a.log.Stream(s)) }

// Remark adds a line of the agent's own to the log.
func (a *Attempt) Remark(text string) { a.log.Remark(text) }

// GraceFor is how long the attempt may still take when its context ended with cause.
func (a *Attempt) GraceFor(cause error) time.Duration {
	grace := a.keeper.GraceFor(cause)
	if errors.Is(cause, ErrDraining) {
		grace = min(grace, a.agent.cfg.Drain.Grace)
	}
	return grace
}

// Exec runs a command as the attempt. It fills in what s leaves out: ids, pipes, the job's environment, and
// the journal's part, so that nothing of the command outlives the agent's death.
func (a *Attempt) Exec(ctx context.Context, s exec.Spec) Result {
	s.JobID, s.Attempt, s.Type = a.Job.ID, a.Job.Attempt, a.Job.Type
	s.Stdout, s.Stderr = a.Stream(protocol.Stdout), a.Stream(protocol.Stderr)
	s.Remark = a.Remark
	s.GraceFor, s.Hurry = a.GraceFor, a.Hurry
	for _, k := range slices.Sorted(maps.Keys(a.Job.Env)) {
		s.Env = append(s.Env, k+"="+a.Job.Env[k])
	}
	if err := a.redactEnv(s.Env); err != nil {
		res := couldNotStart(err.Error())
		a.agent.noteExit(a, res)
		return res
	}
	var socket *redactSocket
	var serving sync.WaitGroup
	s.Started = func(p exec.Proc) error {
		if err := a.agent.journal.SetProc(a.Job.ID, a.Job.Attempt, journal.Proc(p), time.Now()); err != nil {
			return err
		}
		var err error
		if socket, err = listenRedact(p, a.secrets, a.agent.log); err != nil {
			// The job runs without: what needs it hears of it from `agentd redact`.
			a.agent.log.Warn("job can't add secrets to its redaction", zap.String("job", a.Job.ID), zap.Error(err))
			return nil
		}
		serving.Go(socket.serve)
		return nil
	}
	s.Exited = func(r Result) { a.agent.noteExit(a, r) }
	res := a.agent.runner.Run(ctx, s)
	if socket != nil {
		_ = socket.close() // nothing was written
	}
	serving.Wait()
	return res
}

// Command is a Handler that runs a program, with the payload as JSON on its stdin.
type Command struct {
	Command     []string
	Env         []string      // KEY=VALUE; the job's own come after
	Timeout     time.Duration // 0 = the job's alone, else the shorter counts
	GracePeriod time.Duration // 0 = the job's
	Spec        exec.Spec     // StopSignal, Limits, User, KeepWorkDir; the rest is filled in
}

// Run runs the program.
func (c Command) Run(ctx context.Context, a *Attempt) Result {
	s := c.Spec
	s.Command, s.Env, s.Stdin = c.Command, slices.Clone(c.Env), a.Job.Payload
	s.Timeout, s.Grace = c.timeout(a.Job), c.Grace(a.Job)
	return a.Exec(ctx, s)
}

func (c Command) timeout(job *protocol.Job) time.Duration {
	t := job.Timeout.Duration()
	if c.Timeout > 0 && (t == 0 || c.Timeout < t) {
		t = c.Timeout
	}
	return t
}

// Grace is the handler's, or else the job's.
func (c Command) Grace(job *protocol.Job) time.Duration {
	if c.GracePeriod > 0 {
		return c.GracePeriod
	}
	return job.Grace.Duration()
}

// Shell is a Handler that runs payload.script with /bin/sh. Whoever may submit jobs may then run anything as the agent's user.
type Shell struct{ Command }

// Run runs the script.
func (s Shell) Run(ctx context.Context, a *Attempt) Result {
	var payload struct {
		Script string `json:"script"`
	}
	if err := json.Unmarshal(a.Job.Payload, &payload); err != nil || payload.Script == "" {
		return couldNotStart(fmt.Sprintf("payload has no script: %v", err))
	}
	spec := s.Spec
	spec.Command, spec.Env = []string{"/bin/sh", "-c", payload.Script}, slices.Clone(s.Env)
	spec.Timeout, spec.Grace = s.timeout(a.Job), s.Grace(a.Job)
	return a.Exec(ctx, spec)
}

// couldNotStart is what a shell answers to a command that it can't execute.
func couldNotStart(why string) Result {
	now := time.Now()
	return Result{Outcome: protocol.Failed, ExitCode: 126, Error: "could not start: " + why, NotStarted: true, StartedAt: now, FinishedAt: now}
}
