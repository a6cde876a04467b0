package main

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"agentd/agent"
	"agentd/agent/exec"
)

// loadText loads a config from text, with an environment and flags.
func loadText(t *testing.T, text string, env map[string]string, args ...string) (settings, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agentd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cli{config: path, getenv: func(k string) string { return env[k] }}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addOverrides(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c.load(flags)
}

const whole = `
server: https://control.example.com     # required
name: host-1
state_dir: /var/lib/agentd
runtime_dir: /run/agentd
max_jobs: 3
labels: {region: eu-1, gpu: 1}
drain: {timeout: 31s, flush: 11s}
handlers:
  - type: extract
    command: [/opt/etl/extract, --json]
    timeout: 1h
    grace: 10s
    limits: {memory: 2GiB, cpus: 1.5}
  - type: shell
queries:
  - type: io.atlas.entra
    connectors: [ucc_entra]
    command: [/opt/etl/lookup]
    persistent: true
    concurrency: 4
logs:
  memory: 50MB
  durability: strict
  max_line: 64KiB
  compression: auto
  spool: {max_size: 2GiB, min_free: 5%, when_full: block, keep_shipped: 0s}
tls: {ca_file: "", cert_file: "", key_file: ""}
metrics: {listen: ""}
`

func TestWholeConfig(t *testing.T) {
	s, err := loadText(t, whole, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Server, want.Name, want.MaxJobs = "https://control.example.com", "host-1", 3
	want.Labels = map[string]string{"region": "eu-1", "gpu": "1"}
	want.Drain = agent.Drain{Timeout: 31 * time.Second, Grace: 10 * time.Second, Flush: 11 * time.Second}
	want.Handlers = []handler{
		{Type: "extract", Command: []string{"/opt/etl/extract", "--json"}, Timeout: time.Hour, Grace: 10 * time.Second, Limits: exec.Limits{Memory: 2 << 30, CPUs: 1.5}},
		{Type: "shell"},
	}
	want.Queries = []querySettings{{Type: "io.atlas.entra", Connectors: []string{"ucc_entra"}, Command: []string{"/opt/etl/lookup"}, Persistent: true, Concurrency: 4}}
	want.Logs.Durability = "strict"
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

func TestDefaultsAreDocumentedOnes(t *testing.T) {
	s, err := loadText(t, "server: http://127.0.0.1:7070", nil)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	if s.Name != host || s.StateDir != "/var/lib/agentd" || s.RuntimeDir != "/run/agentd" || s.MaxJobs != 2 ||
		s.Drain.Timeout != 30*time.Second || s.Drain.Flush != 10*time.Second || s.Logs.Memory != 50e6 || s.Logs.MaxLine != 65536 ||
		s.Logs.Spool.MaxSize != 2<<30 || s.Logs.Spool.MinFree != 0.05 || s.Logs.Spool.WhenFull != "block" || s.Metrics != "" {
		t.Errorf("defaults %+v are not the documented ones", s)
	}
}

// What check prints reads back to the same config.
func TestPrintedConfigReadsBack(t *testing.T) {
	for _, text := range []string{whole, "server: http://127.0.0.1:7070\nname: \"true\"\nlabels: {\"a: b\": '5', x: \"\"}\nlogs: {memory: 1537kB, max_line: 1KiB}\n"} {
		s, err := loadText(t, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		s.print(&out)
		again, err := loadText(t, out.String(), nil)
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Errorf("printed:\n%s\nread back: %v\ngot  %+v\nwant %+v", out.String(), err, again, s)
		}
	}
}

func TestEveryFaultIsNamedAtOnce(t *testing.T) {
	_, err := loadText(t, `server: control.example.com
max_jobs: zero
label: {a: b}
drain: {timeout: 30, flush: 10 seconds}
handlers:
  - type: extract
    command: /opt/etl/extract
    limits: {memory: 2G, cpus: 1.5}
  - command: [a]
  - type: shell
    command: [a]
  - {type: x, command: [y], grce: 1s}
  - {type: x, command: [y]}
max_jobs: 4
logs:
  durability: maybe
  spool: {max_size: 2GiB, min_free: 5, when_full: block}
queries: {}
tls: {cert_file: a}
`, nil)
	e, ok := errors.AsType[*configError](err)
	if !ok {
		t.Fatalf("error %v, want a configError", err)
	}
	var got []string
	for line := range strings.SplitSeq(e.Error(), "\n") {
		_, rest, _ := strings.Cut(line, "agentd.yaml:")
		got = append(got, rest)
	}
	want := []string{
		`1: server: "control.example.com" has no scheme: write https://control.example.com`,
		`2: max_jobs: "zero" is not a whole number within 1 and 1000`,
		`3: label: unknown key; did you mean labels?`,
		`4: drain.flush: "10 seconds" is not a duration: write 500ms, 30s, 5m or 1h30m`,
		`4: drain.timeout: "30" is not a duration: write 500ms, 30s, 5m or 1h30m`,
		`7: handlers[0].command: text where a list is wanted: [a, b], or one line each that begins with -`,
		`8: handlers[0].limits.memory: "2G" is not a size: units are B, GB, GiB, KB, KiB, MB, MiB, TB, TiB, kB`,
		`9: handlers[1].type: missing`,
		`10: handlers[2].command: the type shell runs the job's own script and takes no command`,
		`12: handlers[3].grce: unknown key; did you mean grace?`,
		`13: handlers[4].type: "x" has a handler already`,
		`14: max_jobs: stands here for the second time, first in line 2`,
		`16: logs.durability: "maybe" is none of spill, strict`,
		`17: logs.spool.min_free: "5" is not a share of the disk: write 5%, at most 90%`,
		`18: queries: keys with values where a list is wanted: [a, b], or one line each that begins with -`,
		`19: tls: cert_file and key_file go together`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSyntaxFaultHasItsLine(t *testing.T) {
	_, err := loadText(t, "server: http://127.0.0.1:7070\nlabels: [1\nmax_jobs: 2", nil)
	if err == nil || !strings.Contains(err.Error(), "agentd.yaml:3: not YAML: ',' or ']' must be specified") {
		t.Errorf("error %v, want line 3 and what is missing there", err)
	}
}

func TestFlagsOverrideEnvironmentOverridesFile(t *testing.T) {
	env := map[string]string{"AGENTD_NAME": "from-env", "AGENTD_MAX_JOBS": "7", "AGENTD_LABELS": "a=1,b=2"}
	s, err := loadText(t, "server: http://127.0.0.1:7070\nname: from-file\nmax_jobs: 3\nlabels: {c: d}\nstate_dir: /file", env, "--max-jobs", "9")
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "from-env" || s.MaxJobs != 9 || s.StateDir != "/file" || !maps.Equal(s.Labels, map[string]string{"a": "1", "b": "2"}) {
		t.Errorf("name %q max_jobs %d state_dir %q labels %v", s.Name, s.MaxJobs, s.StateDir, s.Labels)
	}
	_, err = loadText(t, "server: http://127.0.0.1:7070", map[string]string{"AGENTD_MAX_JOBS": "many"}, "--log-level", "loud")
	for _, want := range []string{`$AGENTD_MAX_JOBS: "many" is not a whole number`, `--log-level: "loud" is none of debug, info, warn, error`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want it to say %q", err, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1KiB": 1024, "50MB": 50e6, "1.5MiB": 3 << 19, "2GiB": 2 << 30, "0B": 0, "7 kB": 7000} {
		if got, err := sizeWithin(0, tib)(text); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "5", "5k", "-1MB", "MB", "1e9MB", "999999999TiB", "1.2.3MB"} {
		if got, err := sizeWithin(0, tib)(text); err == nil {
			t.Errorf("%q: %d, want it refused", text, got)
		}
	}
	for _, n := range []int64{0, 1, 1000, 1024, 1537, 50e6, 2 << 30, 3 << 40} {
		if back, err := sizeWithin(0, 1<<50)(size(n)); err != nil || back != n {
			t.Errorf("%d is written %s and reads back %d, %v", n, size(n), back, err)
		}
	}
}

// Whatever stands in the file: no panic, and either settings that print and read back, or faults.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{whole, "", "server: x", "a: &x 1\nb: *x", "? [a]\n: b", "handlers:\n- type: [a]", "- 1", "labels: {1: 2, true: null}", "<<: {a: b}", "server: |\n  http://127.0.0.1:1\n", "logs:\n  spool:\n", "\xff", "a: 1\n---\nb: 2", "server: http://127.0.0.1:1\nlabels: {a: '\t', b: '-', c: .5, d: yes}\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, r := defaults(), &reader{lines: map[string]int{}}
		s.read(r, text)
		s.check(r)
		if len(r.faults) > 0 {
			return
		}
		var out bytes.Buffer
		s.print(&out)
		again, r2 := defaults(), &reader{lines: map[string]int{}}
		again.read(r2, out.Bytes())
		again.check(r2)
		if len(r2.faults) > 0 {
			t.Fatalf("printed config has faults %v:\n%s", r2.faults, out.String())
		}
	})
}
