package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"agentd/test/fleet"
)

// pass waits, unless the bench is stopped.
func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// benchAgents measures what idle agents cost one instance.
func benchAgents(ctx context.Context, e env, r *report) (err error) {
	const agents, watch = 10_000, 30 * time.Second // a poll's length: every agent comes once
	in, err := startInstances(ctx, e, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.stop()) }()
	pid := in.all[0].Server.PID()
	empty, err := anonMB(pid)
	if err != nil {
		return err
	}
	f, err := fleet.New(fleet.Config{URLs: in.urls, AdminToken: in.token, Agents: agents, PollWait: watch, Linkers: 128})
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = f.Run(run) })
	began := time.Now()
	if err := f.Linked(ctx); err != nil {
		return err
	}
	r.value(fmt.Sprintf("%d agents link", agents), "%9.0f a second", agents/time.Since(began).Seconds())
	if err := pass(ctx, watch); err != nil { // what linking took is not what idling takes
		return err
	}
	before, _, err := in.cpu()
	if err != nil {
		return err
	}
	if err := pass(ctx, watch); err != nil {
		return err
	}
	after, _, err := in.cpu()
	if err != nil {
		return err
	}
	full, err := anonMB(pid)
	if err != nil {
		return err
	}
	s := f.Stats()
	if s.Linked != agents || s.Errors > 0 {
		return fmt.Errorf("the fleet didn't idle: %v", s)
	}
	r.atMost("anonymous memory of the server, an agent", "KB", (full-empty)*1000/agents, 30)
	r.value("CPU of the server for all of them", "%9.2f %%", 100*(after-before)/watch.Seconds())
	return nil
}

// benchBeats measures what running jobs cost while nothing happens: a held heartbeat each.
func benchBeats(ctx context.Context, e env, r *report) (err error) {
	const agents, watch = 2000, 20 * time.Second
	in, err := startInstances(ctx, e, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.stop()) }()
	f, err := fleet.New(fleet.Config{URLs: in.urls, AdminToken: in.token, Agents: agents, Linkers: 64})
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = f.Run(run) })
	if err := f.Linked(ctx); err != nil {
		return err
	}
	if err := f.SubmitMany(ctx, agents, 32, fleet.Job{Duration: 10 * time.Minute}); err != nil {
		return err
	}
	if err := f.Running(ctx, agents); err != nil {
		return err
	}
	if err := pass(ctx, 5*time.Second); err != nil { // accepted, and in the rhythm
		return err
	}
	was := f.Stats()
	statements, wal, err := in.work(ctx)
	if err != nil {
		return err
	}
	servers, database, err := in.cpu()
	if err != nil {
		return err
	}
	if err := pass(ctx, watch); err != nil {
		return err
	}
	now := f.Stats()
	statementsNow, walNow, err := in.work(ctx)
	if err != nil {
		return err
	}
	serversNow, databaseNow, err := in.cpu()
	if err != nil {
		return err
	}
	beats := float64(now.Heartbeats - was.Heartbeats)
	if now.Running != agents || now.Lost > was.Lost || beats == 0 {
		return fmt.Errorf("the fleet didn't keep its leases: %v", now)
	}
	r.value("heartbeats, each held about 3 s", "%9.0f a second", beats/watch.Seconds())
	r.atMost("statements a heartbeat", "", float64(statementsNow-statements)/beats, 0.1)
	r.value("write-ahead log a heartbeat", "%9.0f bytes", float64(walNow-wal)/beats)
	r.value("CPU a heartbeat: server, PostgreSQL", "%s ms", fmt.Sprintf("%9.3f, %.3f", 1000*(serversNow-servers)/beats, 1000*(databaseNow-database)/beats))
	late := now.HeartbeatsLate
	r.value("answered later than asked, p99 with the start", "%9.2f ms", float64(late.P99.Microseconds())/1000)
	return nil
}
