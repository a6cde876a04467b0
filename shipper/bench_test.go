package shipper

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"agentd/agent/protocol"
)

// acceptAll is a server that has everything at once.
type acceptAll struct{ bytes int64 }

func (a *acceptAll) ShipLog(_ context.Context, _ protocol.AttemptRef, b protocol.LogBody) (protocol.Next, error) {
	for _, f := range b.Frames {
		a.bytes += int64(len(f))
	}
	return protocol.Next{Next: b.First + b.Count}, nil
}

func (a *acceptAll) LogNext(context.Context, protocol.AttemptRef) (protocol.Next, error) {
	return protocol.Next{}, nil
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func line200(i int) string {
	s := fmt.Sprintf("2026-01-02T15:04:05.%06dZ INFO worker-%d processed row %d of table customers_eu with status ok, duration %dms ", i%1000000, i%7, i, i%997)
	for len(s) < 199 {
		s += fmt.Sprintf("k%d=%x ", len(s), i*2654435761)
	}
	return s[:199] + "\n"
}

// BenchmarkPipeToBatch: a child's output through a pipe, into the queue, framed, compressed and handed to a sender.
func BenchmarkPipeToBatch(b *testing.B) {
	for _, compression := range []string{"none", "snappy", "zstd"} {
		b.Run(compression, func(b *testing.B) {
			dir := b.TempDir()
			if _, err := os.Stat("/dev/shm"); err == nil {
				dir, _ = os.MkdirTemp("/dev/shm", "agentd") //nolint:usetesting // on tmpfs
				defer os.RemoveAll(dir)
			}
			var text bytes.Buffer
			for i := 0; text.Len() < 8<<20; i++ {
				text.WriteString(line200(i))
			}
			file := filepath.Join(dir, "text")
			if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
				b.Fatal(err)
			}
			sender := &acceptAll{}
			s, err := New(Config{QueueFile: filepath.Join(dir, "queue"), Sender: sender, Compression: compression})
			if err != nil {
				b.Fatal(err)
			}
			s.SetServer(8<<20, []string{"zstd", "gzip", "snappy"})
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error)
			go func() { done <- s.Run(ctx) }()
			const repeat = 32 // 256 MiB
			b.SetBytes(int64(text.Len()) * repeat)
			b.ReportAllocs()
			cpu0, n := cpu(), 0
			for b.Loop() {
				n++
				l, err := s.Open(protocol.AttemptRef{JobID: "job", Attempt: int64(n), LeaseToken: "t"})
				if err != nil {
					b.Fatal(err)
				}
				r, w, _ := os.Pipe()
				p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8; do cat $0 $0 $0 $0; done", file}, &os.ProcAttr{Files: []*os.File{nil, w, nil}})
				if err != nil {
					b.Fatal(err)
				}
				w.Close()
				if _, err := l.Stream(protocol.Stdout).ReadFrom(r); err != nil {
					b.Fatal(err)
				}
				l.Close()
				r.Close()
				p.Wait()
			}
			if err := s.Flush(ctx); err != nil {
				b.Fatal(err)
			}
			gb := float64(text.Len()*repeat*n) / 1e9
			b.ReportMetric((cpu()-cpu0).Seconds()/gb, "CPU-s/GB")
			b.ReportMetric(float64(sender.bytes)/1e9/gb, "ratio")
			cancel()
			<-done
			s.Close()
		})
	}
}
