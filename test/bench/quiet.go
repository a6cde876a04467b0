package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// benchQuiet measures what keeping 100 leases costs: a held heartbeat each, every 3 s.
func benchQuiet(ctx context.Context, e env, r *report) (err error) {
	const jobs, watch = 100, 20 * time.Second
	config := fmt.Sprintf("max_jobs: %d\nhandlers:\n  - {type: quiet, command: [/bin/sleep, \"600\"], grace: 0s}\ndrain: {timeout: 100ms, grace: 100ms}\n", jobs)
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: config})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	for range jobs {
		if _, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "quiet", MaxAttempts: 1}); err != nil {
			return err
		}
	}
	for {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if st.Running == jobs && st.Lateness.Count >= 2*jobs { // accepted, and in the rhythm
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	before, err := cpuSeconds(s.Agent.PID())
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(watch):
	}
	after, err := cpuSeconds(s.Agent.PID())
	if err != nil {
		return err
	}
	anon, err := anonMB(s.Agent.PID())
	if err != nil {
		return err
	}
	r.atMost(fmt.Sprintf("CPU over %v", watch), "%", 100*(after-before)/watch.Seconds(), 2)
	r.value("anonymous memory", "%9.2f MB", anon)
	return nil
}
