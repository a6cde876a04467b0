package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentd/controlplane-mock/adminclient"
	"agentd/test/netns"
	"agentd/test/stack"
)

// benchLink floods a slow link with logs and looks at the heartbeats of jobs beside it.
func benchLink(ctx context.Context, e env, r *report) (err error) {
	why := netns.Missing()
	if why == "" && e.alone != nil {
		why = e.alone.Error()
	}
	if why != "" {
		r.value("not measured: "+why, "%s", "")
		return nil
	}
	const (
		quiet = 10
		watch = 30 * time.Second
		rate  = "1mbit"
		queue = 500 * time.Millisecond // what a modem of that speed holds: about 40 frames
	)
	link, err := netns.New(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, link.Close()) }()
	config := fmt.Sprintf("insecure: true\nmax_jobs: %d\nlogs: {memory: 8MiB}\ndrain: {timeout: 100ms, grace: 100ms, flush: 100ms}\nhandlers:\n"+
		"  - {type: quiet, command: [/bin/sleep, \"600\"], grace: 0s}\n  - {type: noise, command: [%q, job, noise, \"1000000\"], grace: 0s}\n", quiet+1, e.self)
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: config, Host: link.Near, AgentVia: link.Enter()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	for range quiet {
		if _, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "quiet", MaxAttempts: 1}); err != nil {
			return err
		}
	}
	if err := link.Shape(ctx, rate, queue); err != nil {
		return err
	}
	flood, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "noise", MaxAttempts: 1})
	if err != nil {
		return err
	}
	for last := flood.Last(); last == nil || last.LogNext == 0; last = flood.Last() {
		if flood, err = s.Admin.Job(ctx, flood.ID); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	sent, err := link.Carried()
	if err != nil {
		return err
	}
	began := time.Now()
	var late []time.Duration
	for seen := int64(-1); time.Since(began) < watch; {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if st.Lateness.Count != seen { // those that come together count as one; the agent itself keeps the worst
			seen = st.Lateness.Count
			late = append(late, st.Lateness.Last)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	sentThen, err := link.Carried()
	if err != nil {
		return err
	}
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	r.value("carried meanwhile", "%9.2f Mbit/s", float64(sentThen-sent)*8/1e6/time.Since(began).Seconds())
	r.percentiles("heartbeat's answer after it was due", late, 3*time.Second)
	r.atMost("the latest of all", "s", st.Lateness.Worst.Seconds(), 3)
	if err := link.Unshape(ctx); err != nil {
		return err
	}
	return nil
}
