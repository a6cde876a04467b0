package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// benchKill cancels jobs that ignore SIGTERM and have no grace.
func benchKill(ctx context.Context, e env, r *report) (err error) {
	const rounds = 50
	stamp := filepath.Join(e.dir, "pid")
	// A shell around it, so that there is a tree to end.
	config := fmt.Sprintf("handlers:\n  - {type: deaf, command: [/bin/sh, -c, %q]}\n", fmt.Sprintf("trap '' TERM; %s job deaf %s; exit 1", e.self, stamp))
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: config})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	latencies := make([]time.Duration, 0, rounds)
	for range rounds {
		job, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "deaf", Grace: new(protocol.Millis(0))})
		if err != nil {
			return err
		}
		b, err := awaitFile(ctx, stamp)
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(string(b))
		if err != nil {
			return err
		}
		asked := time.Now()
		if _, err := s.Admin.Cancel(ctx, job.ID, "bench"); err != nil {
			return err
		}
		for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) { // until it has been waited for, too
			if time.Since(asked) > 30*time.Second {
				return fmt.Errorf("process %d is alive 30 s after the cancel", pid)
			}
			time.Sleep(time.Millisecond)
		}
		latencies = append(latencies, time.Since(asked))
		if err := os.Remove(stamp); err != nil {
			return err
		}
		if _, err := settled(ctx, s, job.ID); err != nil {
			return err
		}
	}
	r.percentiles("cancel asked → nothing left alive", latencies, 300*time.Millisecond)
	return nil
}

// benchCrash kills the agent while a job runs. What is left of the job must be ended and noted before polling goes on.
func benchCrash(ctx context.Context, e env, r *report) (err error) {
	const rounds = 100
	stamp := filepath.Join(e.dir, "pid")
	config := fmt.Sprintf("handlers:\n  - {type: sleep, command: [/bin/sh, -c, %q]}\n", "echo $$ > "+stamp+"; exec sleep 600")
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: config})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	latencies := make([]time.Duration, 0, rounds)
	for range rounds {
		job, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "sleep", MaxAttempts: 1})
		if err != nil {
			return err
		}
		// Accepted is not begun: what hasn't begun is released, and runs again.
		if _, err := awaitFile(ctx, stamp); err != nil {
			return err
		}
		if err := os.Remove(stamp); err != nil {
			return err
		}
		killed := time.Now()
		if err := s.Agent.Kill(); err != nil {
			return err
		}
		s.Agent = nil
		if err := s.LaunchAgent(); err != nil { // systemd would wait for RestartSec first
			return err
		}
		at, err := polled(ctx, s)
		if err != nil {
			return err
		}
		latencies = append(latencies, at.Sub(killed))
		if job, err = settled(ctx, s, job.ID); err != nil || job.Last().State != "lost" {
			return fmt.Errorf("the job is %s, want lost (%w)", job.Status, err)
		}
	}
	r.percentiles("kill -9 → a poll is answered", latencies, 5*time.Second)
	return nil
}

// polled waits until a poll was answered and says when that was.
func polled(ctx context.Context, s *stack.Stack) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if st, err := s.Status(ctx); err == nil && !st.Polls.Answered.IsZero() {
			return st.Polls.Answered, nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("no poll was answered: %w\n%s", ctx.Err(), s.Agent.Tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
