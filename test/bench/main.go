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

	"agentd/test/netns"
)

// env is what every section gets.
type env struct {
	bin  string // the binaries under test
	self string // this binary: it plays the jobs
	dir  string // scratch
	data string // the lines that jobs print, see corpus
	mb   int    // size of data, 10^6 bytes
	// alone: why this process isn't in a network namespace of its own; nil: it is. The slow link is made of
	// namespaces, and nothing of the machine's own network is to be touched.
	alone error
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
	{"kill", "POST cancel → nothing of the job left alive (it ignores SIGTERM, grace 0)", benchKill},
	{"idle", "an idle agent", benchIdle},
	{"quiet", "an agent with 100 quiet running jobs", benchQuiet},
	{"crash", "kill -9 of the agent with a job running → it polls again", benchCrash},
	{"link", "heartbeats beside a log flood on a link of 1 Mbit/s", benchLink},
	{"flood", "one job flat out, through agent and control plane", benchFlood},
	{"query", "a person asks, and waits for the page", benchQuery},
	{"redact", "a flood with secrets to look for", benchRedact},
	{"spill", "the spool beside a plain file", benchSpill},
	{"outage", "a backlog: spill, start, drain", benchOutage},
	{"lease", "jobs go out to 64 pollers over three instances, beside a plain loop in pgbench", benchLease},
	{"agents", "10,000 idle agents on one instance", benchAgents},
	{"beats", "2,000 agents with a running job each, on PostgreSQL", benchBeats},
	{"ingest", "jobs that print as much as each store takes", benchIngest},
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
	alone := netns.Isolate(ctx)
	err := bench(ctx, env{bin: *bin, mb: *mb, alone: alone}, *only)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, e env, only string) (err error) {
	if e.bin, err = filepath.Abs(e.bin); err != nil {
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
	if wanted(only, "flood") || wanted(only, "redact") || wanted(only, "outage") {
		fmt.Fprintf(os.Stderr, "making %d MB of 200-byte lines\n", e.mb)
		if err := corpus(e.data, int64(e.mb)*1e6); err != nil {
			return err
		}
	}
	r := newReport(os.Stdout)
	for _, s := range sections {
		if !wanted(only, s.name) {
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

// wanted says whether a section is among those asked for.
func wanted(only, name string) bool {
	return only == "" || slices.Contains(strings.Split(only, ","), name)
}
