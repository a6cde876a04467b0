package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/internal/pgcluster"
	"agentd/test/fleet"
	"agentd/test/stack"
)

// binaries are what the model is compared with.
var binaries = stack.Build()

// TestAgainstTheRealThing runs a fleet on instances and a PostgreSQL of this machine, and the model of the same. It prints both;
// what is asserted leaves room for what else the machine does.
func TestAgainstTheRealThing(t *testing.T) {
	if os.Getenv("AGENTD_SOAK") == "" {
		t.Skip("takes four minutes, and both cores; AGENTD_SOAK=1 runs it")
	}
	t.Setenv("GOGC", "100") // or the instances' collector takes what is idle (docs/scaling.md), which no cost of the model stands for
	for _, c := range []struct {
		name      string
		instances int
		length    time.Duration // of a job, mean
		line      time.Duration
		kill      bool // an instance, as watching begins
	}{
		{"heartbeats alone", 1, 0, 0, false},
		{"jobs that print, over three instances", 3, 90 * time.Second, 5 * time.Second, false},
		{"one of three instances dies", 3, 0, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config{
				agents: 2000, instances: c.instances, cores: 2, oneMachine: true, busy: 1, maxJobs: 1, length: c.length, line: c.line, seed: 1, costs: defaultCosts(),
			}
			cfg.dial = 50 * time.Microsecond    // no TLS here
			cfg.network = 50 * time.Microsecond // a socket
			cfg.client = 200 * time.Microsecond // what the fleet takes for a call
			if cfg.length == 0 {
				cfg.length = 1000 * time.Hour
			}
			seen := measure(t, cfg, c.kill)
			model := one(cfg, "model", watched, func(w *world) {
				if c.kill {
					w.instances[0].stop()
				}
			})[0]
			for _, v := range []struct {
				what        string
				seen, model float64
				within      float64 // factor; 0: is only told
			}{
				{"heartbeats a second", seen.beats, float64(len(model.seen.late)) / watched.Seconds(), 1.1},
				{"CPU of the instances, cores", seen.servers, model.servers.Seconds() / watched.Seconds(), 2},
				{"CPU of the database, cores", seen.database, model.db.Seconds() / watched.Seconds(), 2},
				{"late, ms, p50", ms(at(seen.late, 0.5)), ms(at(model.seen.late, 0.5)), 0},
				{"p99", ms(at(seen.late, 0.99)), ms(at(model.seen.late, 0.99)), 0},
				{"most", ms(at(seen.late, 1)), ms(at(model.seen.late, 1)), 0},
				{"jobs taken away", float64(seen.lost), float64(model.seen.lost), 0},
			} {
				t.Logf("%-28s %9.3f, by the model %9.3f", v.what, v.seen, v.model)
				if v.within > 0 && (v.seen > v.within*v.model || v.model > v.within*v.seen) {
					t.Errorf("%s: %.3f in reality and %.3f by the model are more than a factor of %.1f apart", v.what, v.seen, v.model, v.within)
				}
			}
			// The model's timers are exact: 3 s being thirty gaps, each renewal just misses a flush. Real ones drift past that.
			if apart := (at(seen.late, 0.5) - at(model.seen.late, 0.5)).Abs(); apart > 2*renewGap {
				t.Errorf("p50 of the lateness is %v apart; want two gaps at most", apart)
			}
			if seen.lost > 0 {
				t.Errorf("%d jobs were taken from agents that lived", seen.lost)
			}
		})
	}
}

const watched = 30 * time.Second

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// measured is what a fleet and its control plane did while they were watched.
type measured struct {
	beats, servers, database float64 // a second
	late                     []time.Duration
	lost                     int64
}

const adminToken = "simulation_is-compared-with-what-this-opens"

func measure(t *testing.T, cfg config, kill bool) measured {
	db := pgcluster.ForTest(t, pgcluster.Config{Durable: true, Settings: []string{"shared_buffers=256MB"}})
	dir := t.TempDir()
	var all []*stack.Stack
	var urls []string
	for i := range cfg.instances {
		at := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "admin-token"), []byte(adminToken), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := stack.Start(t.Context(), stack.Config{Bin: binaries.Dir(t), Dir: at, Store: db.URL(), NoAgent: true, ServerArgs: []string{"--log-level", "warn"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		})
		all, urls = append(all, s), append(urls, s.URL)
	}
	wire := newWire(urls)
	f, err := fleet.New(fleet.Config{URLs: urls, AdminURL: urls[len(urls)-1], AdminToken: adminToken, Agents: cfg.agents, Transport: wire})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = f.Run(ctx) })
	t.Cleanup(func() {
		stop()
		wg.Wait()
		wire.close()
	})
	if err := f.Linked(ctx); err != nil {
		t.Fatal(err)
	}
	submit := func(submitted int64) {
		length := min(cfg.length, time.Hour)
		if length < time.Hour {
			length = time.Duration(rand.ExpFloat64() * float64(length))
		}
		j := fleet.Job{Duration: length}
		if cfg.line > 0 {
			j.Lines = int(length / cfg.line)
		}
		if _, err := f.Submit(ctx, j); err != nil && ctx.Err() == nil {
			t.Errorf("submission %d: %v", submitted, err)
		}
	}
	var submitters sync.WaitGroup
	for range 16 {
		submitters.Go(func() {
			for range cfg.agents / 16 {
				submit(0)
			}
		})
	}
	submitters.Wait()
	// As one ends, another is submitted.
	wg.Go(func() {
		for n := int64(cfg.agents); ctx.Err() == nil; {
			if n < int64(cfg.agents)+f.Stats().Completed {
				n++
				submit(n)
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	wait := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	wait(15 * time.Second) // accepted, and in the rhythm
	if kill {
		if err := all[0].Server.Kill(); err != nil {
			t.Fatal(err)
		}
		all[0].Server = nil
	}
	cpu := func() (servers, database float64) {
		for _, s := range all {
			if s.Server != nil {
				own, _ := cpuTimes(t, s.Server.PID())
				servers += own
			}
		}
		pids, err := db.PIDs()
		if err != nil {
			t.Fatal(err)
		}
		for i, pid := range pids {
			own, children := cpuTimes(t, pid)
			database += own
			if i == 0 {
				database += children
			}
		}
		return servers, database
	}
	before := f.Stats()
	servers, database := cpu()
	wire.begin()
	wait(watched)
	m := measured{late: wire.end()}
	serversNow, databaseNow := cpu()
	slices.Sort(m.late)
	m.beats = float64(len(m.late)) / watched.Seconds()
	m.servers, m.database = (serversNow-servers)/watched.Seconds(), (databaseNow-database)/watched.Seconds()
	m.lost = f.Stats().Lost - before.Lost
	return m
}

// cpuTimes is a process's time so far in seconds, and that of its ended children; none, if it has ended itself.
func cpuTimes(t *testing.T, pid int) (own, children float64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the command's name may hold spaces
	var ticks [4]float64
	for i := range ticks {
		if ticks[i], err = strconv.ParseFloat(fields[11+i], 64); err != nil {
			t.Fatal(err)
		}
	}
	const hz = 100 // of every Linux that Go runs on
	return (ticks[0] + ticks[1]) / hz, (ticks[2] + ticks[3]) / hz
}

// wire carries the fleet's calls from many addresses, as those of one are limited, to another instance where one is dead, as a
// balancer would, and measures heartbeats.
type wire struct {
	hosts []string
	from  []*http.Transport

	mu   sync.Mutex
	next int             // guarded by mu
	dead map[string]bool // guarded by mu
	on   bool            // guarded by mu
	late []time.Duration // guarded by mu
}

func newWire(urls []string) *wire {
	w := &wire{dead: map[string]bool{}}
	for _, u := range urls {
		w.hosts = append(w.hosts, strings.TrimPrefix(u, "http://"))
	}
	for i := range 40 {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, 1, byte(i+1))}}
		w.from = append(w.from, &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 1000})
	}
	return w
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	hold, err := strconv.Atoi(r.URL.Query().Get("waitMs"))
	held := err == nil && hold > 0
	w.mu.Lock()
	w.next++
	n := w.next
	host := r.URL.Host
	for i := 0; w.dead[host] && i < len(w.hosts); i++ {
		host = w.hosts[(n+i)%len(w.hosts)]
	}
	w.mu.Unlock()
	if host != r.URL.Host {
		r = r.Clone(r.Context())
		r.URL.Host = host
	}
	began := time.Now()
	resp, err := w.from[n%len(w.from)].RoundTrip(r)
	if err != nil {
		if r.Context().Err() == nil {
			w.mu.Lock()
			w.dead[host] = true
			w.mu.Unlock()
		}
		return nil, err
	}
	if held && resp.StatusCode == http.StatusOK {
		w.mu.Lock()
		if w.on {
			w.late = append(w.late, time.Since(began)-time.Duration(hold)*time.Millisecond)
		}
		w.mu.Unlock()
	}
	return resp, nil
}

func (w *wire) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = true
}

func (w *wire) end() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = false
	return w.late
}

func (w *wire) close() {
	for _, t := range w.from {
		t.CloseIdleConnections()
	}
}
