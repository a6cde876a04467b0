package spool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkAppend prints the spool and a plain file side by side: the same bytes, in the same
// groups, with an fdatasync after each.
func BenchmarkAppend(b *testing.B) {
	const (
		size  = 256 << 10
		total = 512 << 20
		each  = 4 // batches per call, and per fdatasync of the plain file
	)
	for b.Loop() {
		plain := benchPlain(b, total, each*size, size)
		spooled := benchSpool(b, total, size, each)
		b.ReportMetric(plain, "plain-MB/s")
		b.ReportMetric(spooled, "spool-MB/s")
		b.ReportMetric(spooled/plain, "ratio")
	}
}

func benchPlain(b *testing.B, total, group, size int) float64 {
	f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	data := payload("bench/1", 0, size)
	start := time.Now()
	for done := 0; done < total; done += group {
		for at := 0; at < group; at += size {
			if _, err := f.Write(data); err != nil {
				b.Fatal(err)
			}
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	return float64(total) / 1e6 / time.Since(start).Seconds()
}

func benchSpool(b *testing.B, total, size, each int) float64 {
	s, err := Open(Config{Dir: b.TempDir(), MaxSize: 2 << 30, MinFree: -1})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var run, wg sync.WaitGroup
	run.Go(func() {
		if err := s.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	data := payload("bench/1", 0, size)
	start := time.Now()
	const callers = 2 // one hands over while the other waits for the disk
	for c := range callers {
		wg.Go(func() {
			id := fmt.Sprintf("bench/%d", c)
			s.SetMeta(id, []byte("m"))
			for i := range total / size / callers / each {
				batches := make([]Batch, each)
				for j := range batches {
					batches[j] = Batch{Attempt: id, First: int64(i*each + j), Count: 1, Data: data}
				}
				if err := s.Append(ctx, batches...); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	rate := float64(total) / 1e6 / time.Since(start).Seconds()
	cancel()
	run.Wait()
	return rate
}
