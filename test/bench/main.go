package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// env is what every section gets.
type env struct {
	bin  string // the binaries under test
	self string // this binary: it plays the jobs
	dir  string // scratch
	data string // the lines that jobs print, see corpus
	mb   int    // size of data, 10^6 bytes
}

// section measures one thing.
type section struct {
	name string
	what string
	run  func(context.Context, env, *report) error
}

var sections = []section{
	{"poll", "POST jobs → the held poll's answer", benchPoll},
	{"cancel", "POST cancel → SIGTERM in the job", benchCancel},
	{"idle", "an idle agent", benchIdle},
	{"flood", "one job flat out, through agent and control plane", benchFlood},
	{"outage", "a backlog: spill, start, drain", benchOutage},
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "job" {
		if err := runJob(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench job:", err)
			os.Exit(1)
		}
		return
	}
	bin := flag.String("bin", "bin", "folder with the binaries under test")
	only := flag.String("only", "", "comma-separated sections; empty: all")
	mb := flag.Int("mb", 500, "size of the flood in 10^6 bytes")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, *bin, *only, *mb)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, bin, only string, mb int) (err error) {
	e := env{mb: mb}
	if e.bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	if e.self, err = os.Executable(); err != nil {
		return err
	}
	if e.dir, err = os.MkdirTemp("", "agentd-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(e.dir)
	e.data = filepath.Join(e.dir, "lines")
	fmt.Fprintf(os.Stderr, "making %d MB of 200-byte lines\n", mb)
	if err := corpus(e.data, int64(mb)*1e6); err != nil {
		return err
	}
	r := newReport(os.Stdout)
	for _, s := range sections {
		if only != "" && !slices.Contains(strings.Split(only, ","), s.name) {
			continue
		}
		r.section(s.what)
		began := time.Now()
		sub := e
		sub.dir = filepath.Join(e.dir, s.name)
		if err := os.Mkdir(sub.dir, 0o700); err != nil {
			return err
		}
		if err := s.run(ctx, sub, r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s took %v\n", s.name, time.Since(began).Round(time.Second))
	}
	return nil
}
