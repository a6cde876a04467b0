package spool

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const scaleEnv = "AGENTD_SPOOL_SCALE"

// scaleChild starts on a spool as a small host would: 256 descriptors, and says what it took.
func scaleChild() {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: 256}); err != nil {
		fmt.Println("error", err)
		os.Exit(3)
	}
	begin := time.Now()
	s, err := Open(Config{Dir: os.Getenv(scaleEnv), MinFree: -1, MaxSize: 4 << 30})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(3)
	}
	took := time.Since(begin)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	var batches, bytes int64
	most := anonymous()
	for _, in := range s.Attempts() {
		for b, err := range s.Batches(in.Attempt, in.First) {
			if err != nil {
				fmt.Println("error", err)
				os.Exit(3)
			}
			batches++
			bytes += int64(len(b.Data))
			if batches%1000 == 0 {
				most = max(most, anonymous())
			}
		}
		if err := s.Append(ctx, Batch{Attempt: in.Attempt, First: in.Next, Count: 1, Data: []byte("more")}); err != nil {
			fmt.Println("error", err)
			os.Exit(3)
		}
	}
	most = max(most, anonymous())
	cancel()
	wg.Wait()
	fmt.Println(batches, bytes, took.Microseconds(), most)
}

// anonymous is this process's anonymous memory in bytes: what an operator's memory limit counts
// beside page cache.
func anonymous() int64 {
	b, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := bytes.Cut(b, []byte("RssAnon:"))
	var kib int64
	_, _ = fmt.Sscan(string(rest), &kib)
	return kib << 10
}

func measureStart(tb testing.TB, dir string) (batches, size int64, took time.Duration, anon int64) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), scaleEnv+"="+dir, "GOMEMLIMIT=100MiB")
	out, err := cmd.CombinedOutput()
	var us int64
	if _, serr := fmt.Sscan(string(out), &batches, &size, &us, &anon); err != nil || serr != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	return batches, size, time.Duration(us) * time.Microsecond, anon
}

func fillScale(tb testing.TB, dir string, batches, size int) {
	tb.Helper()
	s, err := Open(Config{Dir: dir, MaxSize: 4 << 30, MinFree: -1, EpochSize: 128 << 20})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(tb.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	data := payload("s", 0, size)
	const each = 250
	for i := 0; i < batches; i += each {
		id := fmt.Sprintf("job%d/1", i/each%10)
		s.SetMeta(id, []byte("meta"))
		var bs []Batch
		for j := range each {
			bs = append(bs, Batch{Attempt: id, First: int64(i/each/10*each + j), Count: 1, Data: data})
		}
		if err := s.Append(ctx, bs...); err != nil {
			tb.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
}

// TestL15ManySpooledBatches: start-up and memory don't grow with what is spooled.
func TestL15ManySpooledBatches(t *testing.T) {
	t.Parallel()
	const want = 105_000 / raceCost / 250 * 250
	dir := filepath.Join(fastDir(t), "s")
	fillScale(t, dir, want, 200)
	batches, _, took, anon := measureStart(t, dir)
	t.Logf("%d batches: start %v, %d MiB of anonymous memory", batches, took, anon>>20)
	if batches != want || took > time.Second || anon > raceCost*100<<20 {
		t.Fatalf("%d batches, start %v, %d bytes of anonymous memory", batches, took, anon)
	}
}

// BenchmarkStart measures the start with 2 GB spooled.
func BenchmarkStart(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "s")
	fillScale(b, dir, 8000, 250<<10)
	for b.Loop() {
		_, size, took, anon := measureStart(b, dir)
		b.ReportMetric(float64(size)/1e6, "MB-spooled")
		b.ReportMetric(float64(took.Microseconds())/1e3, "ms-start")
		b.ReportMetric(float64(anon)/1e6, "MB-anonymous")
	}
}
