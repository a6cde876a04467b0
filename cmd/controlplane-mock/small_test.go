package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

func TestQuote(t *testing.T) {
	for arg, want := range map[string]string{
		"":              "''",
		"plain":         "plain",
		"/usr/bin/x-1":  "/usr/bin/x-1",
		"two words":     "'two words'",
		"it's":          `'it'\''s'`,
		"if":            "'if'",
		"A=b":           "'A=b'",
		"$HOME":         "'$HOME'",
		"~":             "'~'",
		"a\nb":          "'a\nb'",
		"http://h:1/?q": "'http://h:1/?q'",
		"http://h:1/":   "http://h:1/",
	} {
		if got := quote(arg); got != want {
			t.Errorf("%q: got %s, want %s", arg, got, want)
		}
	}
}

// FuzzScript asks a real shell what it makes of the words.
func FuzzScript(f *testing.F) {
	f.Add("it's", "a b", "$(reboot)")
	f.Add("", "\\", "\n")
	f.Add("if", "~root", "A=b")
	f.Add("é\xff", "*", "!x")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		args := []string{a, b, c}
		if strings.ContainsRune(a+b+c, 0) {
			return // no argument can hold one
		}
		sh := exec.Command("sh", "-c", script(append([]string{"printf", `%s\0`}, args...)))
		got, err := sh.Output()
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.Join(args, "\x00") + "\x00"; string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A line longer than anything we keep is broken, and nothing is lost.
func TestHeldLinesAreBounded(t *testing.T) {
	var b bytes.Buffer
	l := mergedLog(&b)
	rec := func(r protocol.Record) { l.write(adminclient.LogRecord{Record: r}) }
	rec(protocol.Record{Stream: protocol.Stdout, Text: "begins ", Part: true})
	line := strings.Repeat("e", 1000)
	const n = 2000
	for range n {
		rec(protocol.Record{Stream: protocol.Stderr, Text: line})
		if l.gaps.size > maxHeldLine {
			t.Fatalf("holds %d bytes, want at most %d", l.gaps.size, maxHeldLine)
		}
	}
	rec(protocol.Record{Stream: protocol.Stdout, Text: "ends"})
	if err := l.end(); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	if want := "begins \n" + line + "\n"; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\nends\n") {
		t.Errorf("got %.40q … %q, want the line broken and its end at the end", got, got[len(got)-20:])
	}
	if c := strings.Count(got, line+"\n"); c != n {
		t.Errorf("got %d lines, want %d", c, n)
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain é":             "plain é",
		"\x1b]0;title\x07":    `\u001b]0;title\u0007`,
		"two\nlines":          "two\nlines",
		"back\rward":          `back\u000dward`,
		"right-to-left\u202e": `right-to-left\u202e`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestCgroupMemory(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("self", "1:name=systemd:/x\n0::/a/b\n")
	write("a/memory.max", "1000000\n")
	write("a/b/memory.max", "max\n")
	if got := cgroupMemory(filepath.Join(root, "self"), root); got != 1_000_000 {
		t.Errorf("got %d, want the parent's 1000000", got)
	}
	if got := cgroupMemory(filepath.Join(root, "none"), root); got != math.MaxInt64 {
		t.Errorf("without cgroups: got %d, want no limit", got)
	}
}

// A grace of nothing is asked for, one that isn't named is left to the server.
func TestSubmissionGrace(t *testing.T) {
	for args, want := range map[string]string{"": `{"type":"x"}`, "--grace=0s": `{"type":"x","graceMs":0}`, "--grace=2s": `{"type":"x","graceMs":2000}`} {
		var j jobFlags
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		j.flags(flags, "x")
		if err := flags.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		s, err := j.submission(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(s); err != nil || string(got) != want {
			t.Errorf("%q: %s (%v), want %s", args, got, err, want)
		}
	}
}
