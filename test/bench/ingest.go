package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/snappy"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// benchIngest has jobs ship as much as each store takes.
func benchIngest(ctx context.Context, e env, r *report) error {
	frame, records, plain, err := sealed(e)
	if err != nil {
		return err
	}
	for _, n := range []int{0, 1} {
		sub := e
		sub.dir = filepath.Join(e.dir, fmt.Sprint("store", n))
		if err := ingest(ctx, sub, n, r, frame, records, plain); err != nil {
			return err
		}
	}
	return nil
}

// sealed is what an agent that keeps up sends: a batch of some 256 KiB of records, compressed with snappy.
func sealed(e env) (frame []byte, records, plain int64, err error) {
	file := filepath.Join(e.dir, "some-lines")
	if err := corpus(file, 220_000); err != nil {
		return nil, 0, 0, err
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, 0, 0, err
	}
	var body []byte
	for line := range bytes.Lines(raw) {
		body = protocol.AppendLine(body, 1_732_888_888_123_456, protocol.Stdout, bytes.TrimSuffix(line, []byte("\n")), false, false)
		records++
	}
	var b bytes.Buffer
	w := snappy.NewBufferedWriter(&b)
	if _, err := w.Write(body); err != nil {
		return nil, 0, 0, err
	}
	if err := w.Close(); err != nil {
		return nil, 0, 0, err
	}
	return b.Bytes(), records, int64(len(raw)), nil
}

func ingest(ctx context.Context, e env, n int, r *report, frame []byte, records, plain int64) (err error) {
	const jobs, batches, watch = 8, 4, 8 * time.Second // bodies of about a MiB, as an agent's are when it has much to say
	in, err := startInstances(ctx, e, n, "--lease-ttl", "10m")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.stop()) }()
	frames := make([][]byte, batches)
	for i := range frames {
		frames[i] = frame
	}
	base := pooled()
	defer base.CloseIdleConnections()
	c, err := linkedVia(ctx, in.all[0], base, "ingest.1", "ingest")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var stored atomic.Int64 // batches
	faults := make(chan error, jobs)
	before, databaseBefore, err := in.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range jobs {
		if _, _, err := in.all[0].Admin.Submit(ctx, adminclient.Submission{Type: "ingest"}); err != nil {
			return err
		}
		job, err := c.NextJob(ctx, protocol.PollRequest{PollID: fmt.Sprint("p", i), Wait: 10 * time.Second, Types: []string{"ingest"}})
		if err != nil || job == nil {
			return fmt.Errorf("no job to ship for: %w", err)
		}
		ref := protocol.AttemptRef{JobID: job.ID, Attempt: job.Attempt, LeaseToken: job.LeaseToken}
		wg.Go(func() {
			for first := int64(0); time.Since(began) < watch; first += batches * records {
				if _, err := c.ShipLog(ctx, ref, protocol.LogBody{First: first, Count: batches * records, Encoding: "snappy", Frames: frames}); err != nil {
					faults <- err
					return
				}
				stored.Add(batches)
			}
		})
	}
	wg.Wait()
	took := time.Since(began).Seconds()
	close(faults)
	if err := <-faults; err != nil {
		return err
	}
	after, databaseAfter, err := in.cpu()
	if err != nil {
		return err
	}
	mb := float64(stored.Load()*plain) / 1e6
	r.value("lines stored durably on "+in.kindOf(), "%9.1f MB/s", mb/took)
	r.value("as sent (snappy)", "%9.1f MB/s", float64(stored.Load()*int64(len(frame)))/1e6/took)
	r.value("CPU a GB of lines: server, database", "%s CPU-s", fmt.Sprintf("%.1f, %.1f", 1000*(after-before)/mb, 1000*(databaseAfter-databaseBefore)/mb))
	return nil
}
