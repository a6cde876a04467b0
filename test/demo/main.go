package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "job" {
		code, err := runJob(os.Args[2:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "demo job:", err)
		}
		os.Exit(code)
	}
	bin := flag.String("bin", "bin", "folder with agentd, controlplane-mock and demo-tests")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := demo(ctx, *bin)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: FAILED:", err)
		os.Exit(1)
	}
}

// demoJob is one of the three jobs.
type demoJob struct {
	title          string
	kind           string // the handler
	truth          string // folder of what it printed
	want           string // the status it must end with
	cancelHalfWay  bool
	cancelled      bool
	shown          string // the last line drawn
	job            adminclient.Job
	started, ended time.Time
}

// cancelAfter is "half-way" for a job that would never end: long enough that its log flows.
const cancelAfter = 200 // lines

func demo(ctx context.Context, bin string) (err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "agentd-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w\nwhat was written is kept in %s", err, dir)
		}
	}()
	truth := func(kind string) string { return filepath.Join(dir, "truth-"+kind) }
	jobs := []*demoJob{
		{title: "200,000 lines flat out", kind: "numbers", want: "succeeded"},
		{title: "the project's own tests", kind: "tests", want: "succeeded"},
		{title: "a job cancelled half-way", kind: "ticks", want: "cancelled", cancelHalfWay: true},
	}
	for _, j := range jobs {
		j.truth = truth(j.kind)
	}
	self := filepath.Join(bin, "demo")
	script := fmt.Sprintf("cd %q && set -e; for t in agent/protocol leasekeeper internal/tree; do (cd $t && %q/demo-tests/$(basename $t).test -test.v); done", root, bin)
	config := fmt.Sprintf(`max_jobs: 3
handlers:
  - {type: numbers, command: [%q, job, numbers, %q, "200000"]}
  - {type: tests, command: [%q, job, command, %q, %q, /bin/sh, -c, %q]}
  - {type: ticks, command: [%q, job, ticks, %q]}
`, self, truth("numbers"), self, truth("tests"), root, script, self, truth("ticks"))

	fmt.Println("starting a control plane and an agent on loopback")
	s, err := stack.Start(ctx, stack.Config{Bin: bin, Dir: dir, Config: config})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	fmt.Printf("agent %s is linked and polls; three jobs are submitted\n\n", s.AgentID)
	for _, j := range jobs {
		if j.job, _, err = s.Admin.Submit(ctx, adminclient.Submission{Type: j.kind}); err != nil {
			return err
		}
	}
	if err := watch(ctx, s.Admin, jobs); err != nil {
		return err
	}
	fmt.Println()
	for _, j := range jobs {
		if j.job.Status != j.want {
			return fmt.Errorf("%s: job %s is %s (%s), want %s", j.title, j.job.ID, j.job.Status, j.job.Reason, j.want)
		}
		v, err := check(ctx, s.Admin, j.job, j.truth)
		if err != nil {
			return fmt.Errorf("%s: job %s: %w", j.title, j.job.ID, err)
		}
		fmt.Printf("  %-28s %s; %d records, %d bytes: exactly what it printed\n", j.title, j.job.Status, v.records, v.bytes)
	}
	fmt.Println("\nall three held: no line lost, none twice, every outcome as it should be")
	return nil
}

// watch draws the jobs until each is settled and its log complete.
func watch(ctx context.Context, admin *adminclient.Client, jobs []*demoJob) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // the demo takes seconds; a hang must end
	defer cancel()
	screen := newScreen(os.Stdout)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		open := 0
		for _, j := range jobs {
			job, err := admin.Job(ctx, j.job.ID)
			if err != nil {
				return err
			}
			j.refresh(job, time.Now())
			if j.ended.IsZero() {
				open++
			}
			if j.cancelHalfWay && !j.cancelled && j.stored() >= cancelAfter {
				if _, err := admin.Cancel(ctx, j.job.ID, "the demo cancels it half-way"); err != nil {
					return err
				}
				j.cancelled = true
			}
		}
		screen.show(time.Now(), jobs, open == 0)
		if open == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d jobs did not end: %w", open, len(jobs), context.Cause(ctx))
		case <-tick.C:
		}
	}
}
