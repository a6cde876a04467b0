package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentd/controlplane-mock/adminclient"
)

func (a *app) runCmd() *cobra.Command {
	var j jobFlags
	r := runner{a: a}
	var text string
	c := &cobra.Command{
		Use:   "run [flags] -- CMD ARG…",
		Short: "Submit a shell job, stream its log, exit with its exit code",
		Long: `Submit a job of type shell whose script is CMD and its arguments, each taken exactly as it is given;
or a script of your own with --script. The agent must list the type shell.

Says why the job waits, streams its standard output to standard output and all else to standard error,
over restarts of the server too, and exits with the job's own exit code (128+n for a signal).

Ctrl-C on a terminal asks whether to leave the job to itself (exit code 75: its end isn't known) or to
cancel it. Where there is nobody to ask, SIGINT and SIGTERM cancel the job, and its end is waited for;
a second signal leaves at once. --on-interrupt decides beforehand.`,
		Example: `  controlplane-mock run -- ls -l /var/log
  controlplane-mock run --label region=eu-1 --script 'make test 2>&1 | tail -n 100'`,
	}
	j.flags(c.Flags(), "shell")
	c.Flags().StringVarP(&text, "script", "c", "", "a shell script instead of CMD")
	c.Flags().StringVar(&r.onInterrupt, "on-interrupt", "", "ask, detach or cancel (default: ask on a terminal, else cancel)")
	giveUpFlag(c, &r.giveUp)
	c.Flags().SetInterspersed(false) // what follows CMD is CMD's
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case (text == "") == (len(args) == 0):
			return usage("want either CMD ARG… or --script")
		case r.onInterrupt != "" && r.onInterrupt != ask && r.onInterrupt != detach && r.onInterrupt != cancelIt:
			return usage("--on-interrupt %q: want ask, detach or cancel", r.onInterrupt)
		}
		if text == "" {
			text = script(args)
		}
		payload, err := json.Marshal(map[string]string{"script": text})
		if err != nil {
			return err
		}
		s, err := j.submission(payload)
		if err != nil {
			return err
		}
		if r.client, err = a.client(); err != nil {
			return err
		}
		return r.run(c.Context(), s)
	}
	return c
}

// runner is one `run`. All fields belong to the goroutine that calls run.
type runner struct {
	a           *app
	client      *adminclient.Client
	giveUp      time.Duration
	onInterrupt string

	job        string
	out        *textLog
	signals    chan os.Signal
	cancelling bool // a cancel was asked for here
}

func (r *runner) run(ctx context.Context, s adminclient.Submission) error {
	// From before the job exists: a Ctrl-C right after must not leave one behind unseen.
	r.signals = make(chan os.Signal, 4)
	signal.Notify(r.signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(r.signals)
	job, _, err := r.client.Submit(ctx, s)
	if err != nil {
		return err
	}
	r.job, r.out = job.ID, splitLog(r.a.stdout, r.a.stderr)
	r.a.notef("%s submitted", job.ID)
	w := watcher{client: r.client, job: job.ID, giveUp: r.giveUp}
	err = w.watch(ctx, r.signals, func(e event, more bool) (bool, error) {
		switch {
		case e.record != nil:
			r.out.write(*e.record)
			if more {
				return true, nil
			}
			return true, r.out.flush()
		case e.signal != nil:
			if err := r.out.flush(); err != nil {
				return false, err
			}
			return true, r.interrupted(ctx, e.signal)
		case e.end != nil:
			return false, r.ended(*e.end)
		}
		if err := r.out.flush(); err != nil {
			return false, err
		}
		e.tell(r.a)
		return true, nil
	})
	if endErr := r.out.end(); endErr != nil && err == nil {
		err = endErr
	}
	return err
}

// ended turns the job's end into our own.
func (r *runner) ended(j adminclient.Job) error {
	if err := r.out.end(); err != nil {
		return err
	}
	code := jobExit(j)
	if j.Status == "succeeded" && code == 0 {
		return nil
	}
	why := j.Reason
	if last := j.Last(); last != nil && last.Error != "" && !strings.Contains(why, last.Error) {
		why = strings.TrimPrefix(why+": "+last.Error, ": ")
	}
	if why != "" {
		why = ": " + why
	}
	r.a.notef("%s %s%s", j.ID, j.Status, printable(why))
	return &exitError{code, nil}
}

// jobExit is the exit code that a shell would show for the job's last attempt; a job that didn't
// succeed is never 0.
func jobExit(j adminclient.Job) int {
	last := j.Last()
	if last == nil {
		return exitFailed
	}
	if last.Signal != "" {
		if n := unix.SignalNum(last.Signal); n > 0 {
			return 128 + int(n)
		}
	}
	if last.ExitCode > 0 && last.ExitCode < 256 {
		return last.ExitCode
	}
	if j.Status == "succeeded" && last.ExitCode == 0 {
		return 0
	}
	return exitFailed
}

// interrupted decides what a signal means.
func (r *runner) interrupted(ctx context.Context, sig os.Signal) error {
	if r.cancelling {
		r.a.notef("left %s, which is being cancelled; see controlplane-mock job %s", r.job, r.job)
		return &exitError{exitLater, nil}
	}
	// The job may be over, with only its log still to come: then there is nothing to decide.
	if job, err := r.client.Job(ctx, r.job); err == nil && job.Settled() {
		r.a.notef("%s has ended; the rest of its log: controlplane-mock logs --follow %s", r.job, r.job)
		return r.ended(job)
	}
	what := r.onInterrupt
	if (what == "" || what == ask) && sig == syscall.SIGINT && isTerminal(r.a.stderr) {
		var err error
		if what, err = r.ask(); err != nil {
			r.a.notef("can't ask: %v", err)
			what = ""
		}
	}
	switch what {
	case watchOn:
		return nil
	case detach:
		r.a.notef("left %s to itself: controlplane-mock logs --follow %s, or controlplane-mock cancel %s", r.job, r.job, r.job)
		return &exitError{exitLater, nil}
	}
	if _, err := r.client.Cancel(ctx, r.job, "interrupted ("+unix.SignalName(sigNumber(sig))+")"); err != nil {
		return fmt.Errorf("%s goes on: %w", r.job, err)
	}
	r.cancelling = true
	r.a.notef("%s is being cancelled; waiting for its end (once more to leave now)", r.job)
	return nil
}

func sigNumber(s os.Signal) syscall.Signal {
	if n, ok := s.(syscall.Signal); ok {
		return n
	}
	return 0
}
