package redka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/redka"
)

const bodySize = 4 << 20 // what an agent that is behind sends in one request

func randomBody() []byte {
	b := make([]byte, bodySize)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func benchJob(b *testing.B, s *redka.Store, id string) store.Ref {
	b.Helper()
	if _, _, err := s.Submit(b.Context(), store.NewJob{ID: id, Type: id, Payload: []byte("1"), MaxAttempts: 1}); err != nil {
		b.Fatal(err)
	}
	o, err := s.Lease(b.Context(), store.LeaseParams{AgentID: "a", Types: []string{id}, PollID: id, TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	r := store.Ref{JobID: id, Attempt: o.Attempt, AgentID: "a"}
	if _, err := s.Renew(b.Context(), r, time.Hour, store.Beat{}); err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkAppendLog is to be read beside BenchmarkPlainFile.
func BenchmarkAppendLog(b *testing.B) {
	for _, callers := range []int{1, 4} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s := open(b, b.TempDir())
			body := randomBody()
			var refs []store.Ref
			for i := range callers {
				refs = append(refs, benchJob(b, s, fmt.Sprint("job", i)))
			}
			b.SetBytes(bodySize)
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for _, r := range refs {
				wg.Go(func() { appendAll(b, s, r, body, func() bool { return left.Add(-1) >= 0 }) })
			}
			wg.Wait()
		})
	}
}

func appendAll(b *testing.B, s *redka.Store, r store.Ref, body []byte, more func() bool) {
	for next := int64(0); more(); {
		var err error
		if next, err = s.AppendLog(context.Background(), r, store.LogBatch{First: next, Count: 1000, Encoding: "snappy", Body: body}); err != nil {
			b.Error(err)
			return
		}
	}
}

// BenchmarkPlainFile writes the same bodies to a file, with fdatasync after each.
func BenchmarkPlainFile(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	body := randomBody()
	b.SetBytes(bodySize)
	for b.Loop() {
		if _, err := f.Write(body); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkJob takes jobs through submission, lease, accept and completion, with 10,000 settled ones behind.
func BenchmarkJob(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s := open(b, b.TempDir())
			var left, n atomic.Int64
			round := func(total int64) {
				left.Store(total)
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							id := fmt.Sprint("job", n.Add(1))
							r := benchJob(b, s, id)
							if err := s.Complete(context.Background(), r, protocol.Completion{Outcome: protocol.Succeeded}); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
			}
			if os.Getenv("AGENTD_SOAK") != "" {
				round(10_000)
			}
			b.ResetTimer()
			round(int64(b.N))
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}

// BenchmarkBesideLogs measures what else an agent waits for while logs are written: at the pace of
// 250 MB/s of lines once compressed, and flat out.
func BenchmarkBesideLogs(b *testing.B) {
	b.Run("75MBps", func(b *testing.B) { benchBesideLogs(b, rate.NewLimiter(75e6, 3*bodySize)) })
	b.Run("flatout", func(b *testing.B) { benchBesideLogs(b, rate.NewLimiter(rate.Inf, 0)) })
}

func benchBesideLogs(b *testing.B, pace *rate.Limiter) {
	s := open(b, b.TempDir())
	body := randomBody()
	var wg sync.WaitGroup
	var stop atomic.Bool
	var appended atomic.Int64
	for i := range 3 {
		r := benchJob(b, s, fmt.Sprint("log", i))
		wg.Go(func() {
			appendAll(b, s, r, body, func() bool {
				appended.Add(1)
				return pace.WaitN(context.Background(), bodySize) == nil && !stop.Load()
			})
		})
	}
	held := benchJob(b, s, "held")
	took := map[string][]time.Duration{}
	measure := func(what string, f func()) {
		t := time.Now()
		f()
		took[what] = append(took[what], time.Since(t))
	}
	b.ResetTimer()
	for i := range b.N {
		var r store.Ref
		measure("job", func() { r = benchJob(b, s, fmt.Sprint("job", i)) }) // three commits
		measure("complete", func() {
			if err := s.Complete(b.Context(), r, protocol.Completion{Outcome: protocol.Succeeded}); err != nil {
				b.Error(err)
			}
		})
		measure("renew", func() {
			if _, err := s.Renew(b.Context(), held, time.Hour, store.Beat{}); err != nil {
				b.Error(err)
			}
		})
	}
	b.StopTimer()
	stop.Store(true)
	wg.Wait()
	for what, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, what+"-p99-ms")
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, what+"-p50-ms")
	}
	b.ReportMetric(float64(appended.Load()*bodySize)/1e6/b.Elapsed().Seconds(), "log-MB/s")
}
