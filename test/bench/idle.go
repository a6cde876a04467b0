package main

import (
	"context"
	"errors"
	"time"

	"agentd/test/stack"
)

func benchIdle(ctx context.Context, e env, r *report) (err error) {
	const watch = 30 * time.Second
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: "handlers:\n  - {type: none, command: [/bin/true]}\n"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	time.Sleep(2 * time.Second) // what starting costs is not what idling costs
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
	r.atMost("anonymous memory", "MB", anon, 20)
	r.atMost("CPU over 30 s", "%", 100*(after-before)/watch.Seconds(), 0.2)
	return nil
}
