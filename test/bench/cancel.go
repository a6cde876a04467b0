package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

func benchCancel(ctx context.Context, e env, r *report) (err error) {
	const rounds = 100
	stamp := filepath.Join(e.dir, "stamp")
	config := fmt.Sprintf("handlers:\n  - {type: term, command: [%q, job, term, %q]}\n", e.self, stamp)
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: config})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	latencies := make([]time.Duration, 0, rounds)
	for range rounds {
		job, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "term"})
		if err != nil {
			return err
		}
		if _, err := awaitFile(ctx, stamp+".ready"); err != nil {
			return err
		}
		asked := time.Now()
		if _, err := s.Admin.Cancel(ctx, job.ID, "bench"); err != nil {
			return err
		}
		b, err := awaitFile(ctx, stamp)
		if err != nil {
			return err
		}
		at, err := strconv.ParseInt(string(b), 10, 64)
		if err != nil {
			return err
		}
		latencies = append(latencies, time.Unix(0, at).Sub(asked)) // one machine, one clock
		if err := errors.Join(os.Remove(stamp), os.Remove(stamp+".ready")); err != nil {
			return err
		}
		if _, err := settled(ctx, s, job.ID); err != nil {
			return err
		}
	}
	r.percentiles("cancel asked → SIGTERM in the job", latencies, 100*time.Millisecond)
	return nil
}

// awaitFile waits until path exists and has been written.
func awaitFile(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		b, err := os.ReadFile(path)
		if err == nil && (len(b) > 0 || filepath.Ext(path) == ".ready") {
			return b, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s did not appear: %w", path, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// settled waits until the job has ended and its log is complete.
func settled(ctx context.Context, s *stack.Stack, id string) (adminclient.Job, error) {
	for {
		job, err := s.Admin.Job(ctx, id)
		if err != nil {
			return job, err
		}
		if last := job.Last(); job.Settled() && last != nil && last.LogsComplete {
			return job, nil
		}
		select {
		case <-ctx.Done():
			return job, ctx.Err()
		case <-time.After(25 * time.Millisecond): // asking costs the control plane, too
		}
	}
}
