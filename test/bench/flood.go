package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// flooded is what one job that prints e.data cost.
type flooded struct {
	mbps, cpuPerGB, peakMB float64
	generator, server      float64 // CPU-s/GB of the job and of the control plane
	writtenMB              float64
}

// flood runs `cat e.data` as a job and waits until the control plane has stored all of it.
func flood(ctx context.Context, e env, s *stack.Stack) (f flooded, err error) {
	pid := s.Agent.PID()
	cpu, jobs, err := cpuTimes(pid)
	if err != nil {
		return f, err
	}
	server, err := cpuSeconds(s.Server.PID())
	if err != nil {
		return f, err
	}
	wrote, err := field(pid, "io", "write_bytes")
	if err != nil {
		return f, err
	}
	stopPeak := peak(ctx, func() (float64, error) { return anonMB(pid) })
	began := time.Now()
	job, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "flood"})
	if err == nil {
		job, err = settled(ctx, s, job.ID)
	}
	took := time.Since(began)
	f.peakMB = stopPeak()
	if err != nil {
		return f, err
	}
	if want := int64(e.mb) * 5000; job.Status != "succeeded" || job.Last().LogNext < want {
		return f, fmt.Errorf("job %s is %s with %d records, want succeeded with %d", job.ID, job.Status, job.Last().LogNext, want)
	}
	after, jobsAfter, err := cpuTimes(pid)
	if err != nil {
		return f, err
	}
	serverAfter, err := cpuSeconds(s.Server.PID())
	if err != nil {
		return f, err
	}
	wroteAfter, err := field(pid, "io", "write_bytes")
	if err != nil {
		return f, err
	}
	f.mbps = float64(e.mb) / took.Seconds()
	gb := float64(e.mb) / 1000
	f.cpuPerGB, f.generator, f.server = (after-cpu)/gb, (jobsAfter-jobs)/gb, (serverAfter-server)/gb
	f.writtenMB = float64(wroteAfter-wrote) / 1e6
	return f, nil
}

// zstdCPU is what `zstd -1` costs on the same bytes, in CPU-seconds per GB.
func zstdCPU(ctx context.Context, e env) (float64, error) {
	cmd := exec.CommandContext(ctx, "zstd", "-1", "-q", "-c", e.data)
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("zstd (Debian package zstd): %w", err)
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return used.Seconds() / float64(e.mb) * 1000, nil
}

func floodConfig(e env, compression string) string {
	return fmt.Sprintf("handlers:\n  - {type: flood, command: [/bin/cat, %q]}\nlogs: {compression: %s}\n", e.data, compression)
}

func benchFlood(ctx context.Context, e env, r *report) error {
	reference, err := zstdCPU(ctx, e)
	if err != nil {
		return err
	}
	r.value("zstd -1 -c on the same bytes", "%9.2f CPU-s/GB", reference)
	for _, c := range []struct {
		compression string
		goal        float64 // CPU-s/GB
	}{{"auto", 2}, {"zstd", 3.4}} {
		sub := e
		sub.dir = e.dir + "-" + c.compression
		f, err := floodOnce(ctx, sub, c.compression)
		if err != nil {
			return err
		}
		if c.compression == "auto" {
			r.atLeast("auto: generator, agent and control plane together", "MB/s", f.mbps, 250)
		} else {
			r.value(c.compression+": generator, agent and control plane together", "%9.2f MB/s", f.mbps)
		}
		r.atMost(c.compression+": the agent alone", "CPU-s/GB", f.cpuPerGB, c.goal)
		r.value(c.compression+": the job that prints", "%9.2f CPU-s/GB", f.generator)
		r.value(c.compression+": the control plane", "%9.2f CPU-s/GB", f.server)
		r.atMost(c.compression+": the agent ÷ zstd -1", "", f.cpuPerGB/reference, 2)
		r.value(c.compression+": peak anonymous memory", "%9.2f MB", f.peakMB)
		r.value(c.compression+": written to disk while the control plane answers", "%9.2f MB", f.writtenMB)
	}
	return nil
}

func floodOnce(ctx context.Context, e env, compression string) (f flooded, err error) {
	if err := mkdir(e.dir); err != nil {
		return f, err
	}
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: floodConfig(e, compression)})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	return flood(ctx, e, s)
}
