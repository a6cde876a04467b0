package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentd/spool"
)

// What the shipper gives the spool at a time, and what a stretch is: the two take turns, so that whoever else uses the
// disk slows down both alike.
const (
	spillBatch   = 256 << 10
	spillBatches = 4
	spillStretch = 32 << 20
)

// benchSpill writes the same bytes to the spool and to a plain file, in the same groups, each made durable before the next.
func benchSpill(ctx context.Context, e env, r *report) (err error) {
	s, err := spool.Open(spool.Config{Dir: filepath.Join(e.dir, "spool"), MaxSize: 4 << 30, MinFree: -1})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { err = errors.Join(err, s.Run(running)) })
	defer wg.Wait()
	defer stop()
	f, err := os.Create(filepath.Join(e.dir, "plain"))
	if err != nil {
		return err
	}
	defer f.Close()
	data := make([]byte, spillBatch) // sealed batches don't compress any more
	rnd := rand.NewChaCha8([32]byte{1})
	const id = "bench/1"
	s.SetMeta(id, []byte("{}"))
	var spooled, plain []time.Duration
	n := int64(0)
	for size := 0; size < e.mb*1e6; size += spillStretch {
		for range spillStretch / spillBatch / spillBatches {
			_, _ = rnd.Read(data) // it never fails
			batches := make([]spool.Batch, spillBatches)
			for i := range batches {
				batches[i] = spool.Batch{Attempt: id, First: n, Count: 1, Data: data}
				n++
			}
			began := time.Now()
			if err := s.Append(ctx, batches...); err != nil {
				return err
			}
			spooled = append(spooled, time.Since(began))
		}
		for range spillStretch / spillBatch / spillBatches {
			_, _ = rnd.Read(data) // it never fails
			began := time.Now()
			for range spillBatches {
				if _, err := f.Write(data); err != nil {
					return err
				}
			}
			if err := unix.Fdatasync(int(f.Fd())); err != nil {
				return fmt.Errorf("fdatasync: %w", err)
			}
			plain = append(plain, time.Since(began))
		}
	}
	rate := func(d []time.Duration) float64 {
		var sum time.Duration
		for _, one := range d {
			sum += one
		}
		return float64(len(d)*spillBatch*spillBatches) / 1e6 / sum.Seconds()
	}
	r.value("a plain file, fdatasync after each MiB", "%9.2f MB/s", rate(plain))
	r.value("the spool, durable after each MiB", "%9.2f MB/s", rate(spooled))
	r.atLeast("the spool ÷ the plain file", "", rate(spooled)/rate(plain), 0.6)
	r.value("the longest of its appends, a change of epochs", "%9.2f ms", float64(slices.Max(spooled).Microseconds())/1000)
	r.value("the plain file's longest", "%9.2f ms", float64(slices.Max(plain).Microseconds())/1000)
	return nil
}
