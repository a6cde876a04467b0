package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	// What is simulated is many small things that live for a few seconds: memory is cheaper here than looking for them.
	debug.SetGCPercent(400)
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "simulation:", err)
		os.Exit(1)
	}
}

// scenario is something that happens to a control plane.
type scenario struct {
	name, what string
	run        func(cfg config, length time.Duration) []report
}

// settle is how long a world runs before it is watched: the first heartbeats and polls are spread by then.
const settle = 10 * time.Second

var scenarios = []scenario{
	{"busy", "every agent has a job that prints a line now and then", func(cfg config, length time.Duration) []report {
		return one(cfg, "busy", length, nothing)
	}},
	{"idle", "one agent in a hundred has a job, of ten seconds", func(cfg config, length time.Duration) []report {
		cfg.busy, cfg.length = 0.01, 10*time.Second
		return one(cfg, "idle", length, nothing)
	}},
	{"restart", "all instances are away for 60 s, then all come back", func(cfg config, length time.Duration) []report {
		return one(cfg, "all away 60 s", length, func(w *world) {
			for _, in := range w.instances {
				in.stop()
			}
			w.run(w.now + time.Minute)
			for _, in := range w.instances {
				in.start()
			}
			w.back = w.now
		})
	}},
	{"kill", "one instance dies and stays away", func(cfg config, length time.Duration) []report {
		return one(cfg, "one dies", length, func(w *world) { w.instances[0].stop() })
	}},
	{"slow", "the database's disk takes ten times as long", func(cfg config, length time.Duration) []report {
		cfg.sync *= 10
		return one(cfg, "disk 10× slower", length, nothing)
	}},
	{"away", "the database is away for 20 s", func(cfg config, length time.Duration) []report {
		return one(cfg, "database away 20 s", length, func(w *world) {
			w.db.stop()
			for _, in := range w.instances {
				in.deafen()
			}
			w.run(w.now + 20*time.Second)
			w.db.start()
			w.back = w.now
			for _, in := range w.instances {
				w.after(w.upTo(relisten), in.listen)
			}
		})
	}},
	{"sweep", "half as many agents, and up to twice as many", func(cfg config, length time.Duration) (all []report) {
		for _, percent := range []int{50, 75, 100, 125, 150, 175, 200} {
			c := cfg
			c.agents = cfg.agents * percent / 100
			all = append(all, one(c, "busy", length/2, nothing)...)
		}
		return all
	}},
}

func nothing(*world) {}

// one watches a world after something happened to it.
func one(cfg config, name string, length time.Duration, happens func(*world)) []report {
	w := newWorld(cfg)
	w.run(settle)
	happens(w)
	return []report{w.watch(name, length)}
}

func run(args []string, out io.Writer) error {
	f := flag.NewFlagSet("simulation", flag.ContinueOnError)
	cfg := config{costs: defaultCosts()}
	var names []string
	usage := []string{"what happens; comma-separated, or all but sweep:"}
	for _, s := range scenarios {
		names = append(names, s.name)
		usage = append(usage, fmt.Sprintf("%-8s %s", s.name, s.what))
	}
	f.IntVar(&cfg.agents, "agents", 100_000, "how many")
	f.IntVar(&cfg.instances, "instances", 6, "how many")
	f.IntVar(&cfg.cores, "cores", 2, "of an instance's machine")
	f.IntVar(&cfg.dbCores, "db-cores", 8, "of the database's machine")
	f.Float64Var(&cfg.busy, "busy", 1, "the part of the agents that has a job")
	f.IntVar(&cfg.maxJobs, "max-jobs", 1, "jobs that an agent takes at once; above 1, busy agents hold a poll, too")
	f.DurationVar(&cfg.length, "job", 10*time.Minute, "the mean of a job's length")
	f.DurationVar(&cfg.line, "line", 10*time.Second, "the mean time between two lines of a job, each a batch; 0: no lines")
	f.Uint64Var(&cfg.seed, "seed", 1, "of all that is random")
	length := f.Duration("for", 20*time.Second, "how long is watched")
	which := f.String("scenario", "all", strings.Join(usage, "\n"))
	cfg.flags(f)
	if err := f.Parse(args); err != nil {
		return err
	}
	if cfg.agents < 1 || cfg.instances < 1 || cfg.cores < 1 || cfg.dbCores < 1 || cfg.maxJobs < 1 || *length < time.Second {
		return errors.New("--agents, --instances, --cores, --db-cores and --max-jobs are at least 1, --for is a second or more")
	}
	wanted := strings.Split(*which, ",")
	if *which == "all" {
		wanted = slices.DeleteFunc(names, func(n string) bool { return n == "sweep" })
	}
	var chosen []scenario
	for _, name := range wanted {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return fmt.Errorf("--scenario: %q is none of %s", name, strings.Join(names, ", "))
		}
		chosen = append(chosen, scenarios[i])
	}
	return table(out, slices.Concat(all(chosen, cfg, *length)...))
}

// all runs scenarios at the same time. Each has a world of its own, so that changes no figure.
func all(chosen []scenario, cfg config, length time.Duration) [][]report {
	reports := make([][]report, len(chosen))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i, s := range chosen {
		slots <- struct{}{}
		wg.Go(func() {
			reports[i] = s.run(cfg, length)
			<-slots
		})
	}
	wg.Wait()
	return reports
}
