// Command cmd runs a simulated fleet against a control plane and tells how it fares. See package fleet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"agentd/test/fleet"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("fleet", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprint(f.Output(), "Simulate agents by the thousand against a control plane.\n\n"+
			"  go run ./test/fleet/cmd --url http://127.0.0.1:7070 --admin-token-file FILE --agents 2000 --rate 50 --job 10s --lines 100\n\n")
		f.PrintDefaults()
	}
	urls := f.String("url", "http://127.0.0.1:7070", "the control plane; comma-separated: several instances")
	admin := f.String("admin-url", "", "its admin side, where that has an address of its own")
	tokenFile := f.String("admin-token-file", "", "file with the admin token")
	agents := f.Int("agents", 100, "how many")
	length := f.Duration("for", time.Minute, "how long, from when all have linked")
	rate := f.Float64("rate", 0, "jobs to submit a second")
	jobs := f.Int("jobs", 0, "jobs to submit as soon as all have linked")
	job := f.Duration("job", 0, "how long a job takes")
	lines := f.Int("lines", 0, "lines that a job prints over that time")
	size := f.Int("line-bytes", 100, "how long a line is")
	linkers := f.Int("linkers", 16, "agents that link at once")
	if err := f.Parse(args); err != nil {
		return err
	}
	token, err := os.ReadFile(*tokenFile)
	if err != nil {
		return fmt.Errorf("--admin-token-file: %w", err)
	}
	what := fleet.Job{Duration: *job, Lines: *lines, LineBytes: *size}
	fl, err := fleet.New(fleet.Config{
		URLs: strings.Split(*urls, ","), AdminURL: *admin, AdminToken: strings.TrimSpace(string(token)), Agents: *agents, Job: what, Linkers: *linkers,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	wg.Go(func() { stop(fl.Run(ctx)) })
	wg.Go(func() { progress(ctx, fl) })
	err = drive(ctx, fl, *length, *jobs, *rate, what)
	stats := fl.Stats()
	stop(err)
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	summary(stats, *length)
	return err
}

// drive submits what is asked for.
func drive(ctx context.Context, fl *fleet.Fleet, length time.Duration, jobs int, rate float64, what fleet.Job) error {
	if err := fl.Linked(ctx); err != nil {
		return err
	}
	over, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	const atOnce = 16
	if err := fl.SubmitMany(ctx, jobs, atOnce, what); err != nil {
		return err
	}
	if rate <= 0 {
		<-over.Done()
		return nil
	}
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	for {
		select {
		case <-over.Done():
			return nil
		case <-tick.C:
			if _, err := fl.Submit(ctx, what); err != nil {
				return err
			}
		}
	}
}

func progress(ctx context.Context, fl *fleet.Fleet) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			fmt.Fprintln(os.Stderr, fl.Stats())
		}
	}
}

func summary(s fleet.Stats, length time.Duration) {
	each := func(n int64) float64 { return float64(n) / length.Seconds() }
	fmt.Printf("agents linked          %d\n", s.Linked)
	fmt.Printf("polls answered         %d, %d of them empty\n", s.Polls, s.Empty)
	fmt.Printf("jobs                   %d submitted, %d completed (%.1f/s), %d running, %d taken away\n", s.Submitted, s.Completed, each(s.Completed), s.Running, s.Lost)
	fmt.Printf("pickup                 %v\n", s.Pickup)
	fmt.Printf("heartbeats             %d (%.1f/s), late: %v\n", s.Heartbeats, each(s.Heartbeats), s.HeartbeatsLate)
	fmt.Printf("log batches            %d acknowledged, %.2f MB/s, %v\n", s.Acks, each(s.LogBytes)/1e6, s.Ship)
	fmt.Printf("failed calls           %d, %d of them without the server's word\n", s.Errors, s.Unanswered)
}
