package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// override is a setting that flags and environment may replace: flags win over environment, environment over file.
type override struct {
	flag, env, usage string
	set              func(s *settings, value string) error
}

func overrides() []override {
	str := func(dst func(*settings) *string) func(*settings, string) error {
		return func(s *settings, v string) error { *dst(s) = v; return nil }
	}
	return []override{
		{"server", "AGENTD_SERVER", "URL of the control plane", str(func(s *settings) *string { return &s.Server })},
		{"name", "AGENTD_NAME", "the agent's name", str(func(s *settings) *string { return &s.Name })},
		{"state-dir", "AGENTD_STATE_DIR", "directory that outlives a reboot", str(func(s *settings) *string { return &s.StateDir })},
		{"runtime-dir", "AGENTD_RUNTIME_DIR", "directory of socket and queue, on tmpfs", str(func(s *settings) *string { return &s.RuntimeDir })},
		{"token-file", "AGENTD_TOKEN_FILE", "file with the enrolment token", str(func(s *settings) *string { return &s.TokenFile })},
		{"log-level", "AGENTD_LOG_LEVEL", "debug, info, warn or error", func(s *settings, v string) (err error) {
			s.LogLevel, err = oneOf("debug", "info", "warn", "error")(v)
			return err
		}},
		{"max-jobs", "AGENTD_MAX_JOBS", "how many jobs may run side by side", func(s *settings, v string) (err error) {
			s.MaxJobs, err = intWithin(1, 1000)(v)
			return err
		}},
		{"labels", "AGENTD_LABELS", "labels, as region=eu-1,gpu=1", func(s *settings, v string) error {
			s.Labels = map[string]string{}
			for pair := range strings.SplitSeq(v, ",") {
				k, value, ok := strings.Cut(pair, "=")
				if !ok && pair != "" {
					return fmt.Errorf("%q is not name=value", pair)
				}
				if k != "" {
					s.Labels[strings.TrimSpace(k)] = strings.TrimSpace(value)
				}
			}
			return nil
		}},
		{"insecure", "AGENTD_INSECURE", "allow http:// to other hosts than this one", func(s *settings, v string) (err error) {
			s.Insecure, err = parseBool(v)
			return err
		}},
	}
}

// addOverrides makes the flags.
func addOverrides(flags *pflag.FlagSet) {
	for _, o := range overrides() {
		flags.String(o.flag, "", fmt.Sprintf("%s ($%s)", o.usage, o.env))
	}
	flags.Lookup("insecure").NoOptDefVal = "true" // --insecure alone says it
}

// load makes the effective config: defaults, file, environment, flags. Its error is a *configError with all faults.
func (c *cli) load(flags *pflag.FlagSet) (settings, error) {
	path := cmp.Or(c.config, c.getenv("AGENTD_CONFIG"), defaultConfig)
	s := defaults()
	r := &reader{lines: map[string]int{}}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.config == "" && c.getenv("AGENTD_CONFIG") == "":
		// No file was named and there is none: flags and environment may say all that is needed.
	case err != nil:
		return s, &configError{file: path, faults: []fault{{what: "can't be read: " + err.Error()}}, unread: true}
	default:
		s.read(r, text)
	}
	for _, o := range overrides() {
		from, value := "$"+o.env, c.getenv(o.env)
		given := value != ""
		if f := flags.Lookup(o.flag); f != nil && f.Changed {
			from, value, given = "--"+o.flag, f.Value.String(), true
		}
		if !given {
			continue
		}
		if err := o.set(&s, value); err != nil {
			r.faults = append(r.faults, fault{path: from, what: err.Error()})
		}
	}
	s.check(r)
	if len(r.faults) > 0 {
		slices.SortStableFunc(r.faults, func(a, b fault) int {
			return cmp.Or(cmp.Compare(a.line, b.line), strings.Compare(a.path, b.path))
		})
		return s, &configError{file: path, faults: r.faults}
	}
	return s, nil
}

// quote writes text so that YAML reads the same text back: only what can't be taken for anything else goes without quotes.
func quote(s string) string {
	plain := strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == ""
	first := strings.IndexFunc(s, func(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '/' })
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		plain = false
	}
	if plain && first == 0 {
		return s
	}
	return strconv.Quote(s)
}
