package exec

import (
	"context"
	"errors"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRemovalIsSafeAndComplete(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"files and directories", `mkdir -p a/b/c; touch a/1 a/b/2 a/b/c/3 .hidden`},
		{"links out", `ln -s "$OUTSIDE" dir; ln -s "$OUTSIDE/precious" file; ln "$OUTSIDE/precious" hard`},
		{"closed directories", `mkdir -p a/b; touch a/b/c; chmod 0 a/b a .`},
		{"500 deep", `mkdir -p "$(printf 'd/%.0s' $(seq 500))"`},
		{"1500 files", `i=0; while [ $i -lt 1500 ]; do : >f$i; i=$((i+1)); done`},
		{"fifo, socketless odd names", `mkfifo f; touch -- -rf "a b" "$(printf 'new\nline')"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			top, outside := t.TempDir(), t.TempDir()
			precious := filepath.Join(outside, "precious")
			if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(top, "a-1"), 0o700); err != nil {
				t.Fatal(err)
			}
			sh := osexec.Command("sh", "-c", c.script)
			sh.Dir, sh.Env = filepath.Join(top, "a-1"), append(os.Environ(), "OUTSIDE="+outside)
			if out, err := sh.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := removeTree(top, "a-1", time.Now().Add(20*time.Second)); err != nil {
				t.Fatal(err)
			}
			if exists(top, "a-1") {
				t.Error("the directory is still there")
			}
			if data, err := os.ReadFile(precious); string(data) != "x" {
				t.Errorf("outside: %q, %v; want it untouched", data, err)
			}
		})
	}
}

func TestRemovalStopsAtAMount(t *testing.T) {
	top, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	mnt := filepath.Join(top, "a-1", "mnt")
	if err := os.MkdirAll(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(outside, mnt, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("no bind mount to be had: %v", err)
	}
	defer unix.Unmount(mnt, 0)
	if err := removeTree(top, "a-1", time.Now().Add(time.Second)); !errors.Is(err, unix.EXDEV) {
		t.Errorf("got %v, want EXDEV", err)
	}
	if data, err := os.ReadFile(filepath.Join(outside, "precious")); string(data) != "x" {
		t.Errorf("behind the mount: %q, %v; want it untouched", data, err)
	}
}

func TestRemovalIsBounded(t *testing.T) {
	top := t.TempDir()
	if err := os.MkdirAll(filepath.Join(top, "a-1", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(top, "a-1", time.Now().Add(-time.Second)); !errors.Is(err, errRemoveTime) {
		t.Errorf("got %v, want %v", err, errRemoveTime)
	}
}

func TestStatIsReadWhateverTheName(t *testing.T) {
	line := func(name string) string {
		return "42 (" + name + ") S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 200 18446744073709551615"
	}
	want := procStat{pid: 42, ppid: 7, pgid: 40, state: 'S', startTicks: 987654}
	for _, name := range []string{"sh", "a b", ") Z 1 1 (", "", ")"} {
		if got, err := parseStat([]byte(line(name))); err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", name, got, err, want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	for _, s := range []string{"", "1 (", ")(", "1 (sh) S", "42 (a) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000", "1 () S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 -1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := parseStat(data); err == nil && s.state == 0 {
			t.Errorf("%q: no state and no error", data)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want []string
	}{
		{Config{WorkRoot: "work"}, []string{`workRoot "work" is not an absolute path`}},
		{Config{WorkRoot: "/x", Cgroup: "maybe", PassEnv: []string{"A=B"}}, []string{`cgroup "maybe"`, `passEnv: "A=B"`}},
	} {
		_, err := New(c.cfg)
		if err == nil {
			t.Errorf("%+v: no error", c.cfg)
			continue
		}
		for _, want := range c.want {
			if !strings.HasPrefix(err.Error(), "exec: ") || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: got %v, want it to say %q", c.cfg, err, want)
			}
		}
	}
	if _, err := New(Config{WorkRoot: t.TempDir(), Cgroup: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "cgroup.kill") {
		t.Errorf("a directory that is no cgroup: got %v, want it to say so", err)
	}
}

// A directory stands in for a cgroup with controllers, which this host may not have; what is written is what is checked.
func TestLimitsAreWritten(t *testing.T) {
	base := t.TempDir()
	c := cgroups{base: base, controllers: wanted}
	// Files of a cgroup exist by themselves; here they are made by the write.
	dir, err := c.make("x-1", Limits{Memory: 64 << 20, Pids: 10, CPUs: 1.5})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		data, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		got[e.Name()] = string(data)
	}
	want := map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "10", "cpu.max": "150000 100000"}
	for file, value := range want {
		if got[file] != value {
			t.Errorf("%s: got %q, want %q", file, got[file], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("written: %v, want %v", got, want)
	}
}

// As under systemd: a cgroup of our own, marked as delegated, into a leaf of which the agent moves.
func TestDelegatedCgroupIsDivided(t *testing.T) {
	mount, _, err := findCgroup2()
	if err != nil {
		t.Skip(err)
	}
	own := filepath.Join(mount, "agentd-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Skipf("no cgroup to be made here: %v", err)
	}
	defer unix.Rmdir(own)
	if _, err := openOwn(own, "/w"); err == nil || !strings.Contains(err.Error(), "is not delegated (Delegate=yes in the unit)") {
		t.Errorf("undelegated: got %v, want it refused with the fix", err)
	}
	if err := unix.Setxattr(own, "trusted.delegate", []byte("1"), 0); err != nil {
		t.Skipf("no extended attributes on cgroups here: %v", err)
	}
	before, err := ownCgroupDir()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Rmdir(filepath.Join(own, leaf))
	defer enterCgroup(before)
	if err := enterCgroup(own); err != nil {
		t.Fatal(err)
	}
	r := newRunner(t, Config{Cgroup: CgroupAuto})
	if got := r.Support(); got.Cgroup != own {
		t.Errorf("got %+v, want %s", got, own)
	}
	res, tr := run(t, r, "cat /proc/self/cgroup", Spec{})
	if !strings.Contains(tr.out.text(), filepath.Join(filepath.Base(own), filepath.Base(tr.proc.Cgroup))) {
		t.Errorf("%+v: the job was in %q, want %s", res, tr.out.text(), tr.proc.Cgroup)
	}
	if len(controllersIn(own, "cgroup.controllers")) == 0 {
		t.Logf("no controllers here: %s", r.Support().Why)
		return
	}
	if now, _ := ownCgroupDir(); now != filepath.Join(own, leaf) {
		t.Errorf("the agent is in %s, want the leaf", now)
	}
}

func TestEnvironmentOfAnotherUser(t *testing.T) {
	a := &attempt{
		r:    &Runner{cfg: Config{Environ: []string{"HOME=/root", "USER=root", "SHELL=/bin/zsh", "TMPDIR=/root/tmp", "TZ=UTC"}}},
		user: &account{name: "etl", home: "/home/etl"}, dir: &workDir{path: "/w"},
		spec: Spec{Env: []string{"TZ=Europe/Oslo"}},
	}
	env := a.environ()
	for name, want := range map[string]string{"HOME": "/home/etl", "USER": "etl", "LOGNAME": "etl", "SHELL": "", "TMPDIR": "", "TZ": "Europe/Oslo", "PATH": defaultPath} {
		if got := lookup(env, name); got != want {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
	if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "SHELL=") }) {
		t.Error("SHELL is the agent's")
	}
}

// BenchmarkStartToGone is an attempt that does nothing: the price of the shim, the directory and the cgroup.
func BenchmarkStartToGone(b *testing.B) {
	r, err := New(Config{WorkRoot: b.TempDir(), Environ: os.Environ()})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for b.Loop() {
		if res := r.Run(b.Context(), Spec{JobID: "j", Command: []string{"true"}}); res.Outcome != "succeeded" {
			b.Fatal(res)
		}
	}
}

// BenchmarkCancelToGone: the job ignores TERM and has no grace. Goal: p99 ≤ 300 ms to nothing left alive.
func BenchmarkCancelToGone(b *testing.B) {
	for _, mode := range modes {
		b.Run("cgroup "+mode, func(b *testing.B) {
			r, err := New(Config{WorkRoot: b.TempDir(), Environ: os.Environ(), Cgroup: mode})
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			var took []time.Duration
			for b.Loop() {
				out := newSink()
				ctx, cancel := context.WithCancelCause(b.Context())
				var gone time.Time
				done := make(chan struct{})
				go func() {
					defer close(done)
					r.Run(ctx, Spec{
						JobID: "j", Stdout: out, Exited: func(Result) { gone = time.Now() },
						Command: []string{"sh", "-c", `trap '' TERM; setsid sleep 600 & echo ready; wait; sleep 600`},
					})
				}()
				for out.text() == "" {
					<-time.After(time.Millisecond)
				}
				start := time.Now()
				cancel(errCancelled)
				<-done
				took = append(took, gone.Sub(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
