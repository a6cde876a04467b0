package systemd_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"agentd/agent"
)

// unit reads the settings of the unit file; of those that stand there more than once, the last.
func unit(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("agentd.service")
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			settings[key] = value
		}
	}
	return settings
}

// systemd must not kill what is still draining by the rules.
func TestStopTimeoutExceedsTheDrain(t *testing.T) {
	stop, err := time.ParseDuration(unit(t)["TimeoutStopSec"])
	if err != nil {
		t.Fatal(err)
	}
	drain := agent.Drain{Timeout: agent.DefaultDrainTimeout, Grace: agent.DefaultDrainGrace, Flush: agent.DefaultDrainFlush}.Total()
	if stop < drain+10*time.Second {
		t.Errorf("TimeoutStopSec is %v, want at least 10 s more than the drain's %v", stop, drain)
	}
}

// What the code relies on.
func TestUnitDoesWhatTheCodeExpects(t *testing.T) {
	got := unit(t)
	for key, want := range map[string]string{
		"Type":                     "notify",
		"TimeoutStartSec":          "10min", // recovery isn't cut short
		"KillMode":                 "mixed", // SIGTERM to the agent alone: it ends its jobs itself
		"Delegate":                 "yes",   // a cgroup for each attempt
		"RestartPreventExitStatus": "78",
		"RuntimeDirectoryPreserve": "yes", // the queue outlives a crash and a stop on a full disk
		"OOMPolicy":                "continue",
		"StateDirectory":           strings.TrimPrefix(agent.DefaultStateDir, "/var/lib/"),
		"RuntimeDirectory":         strings.TrimPrefix(agent.DefaultRuntimeDir, "/run/"),
		"RestrictNamespaces":       "", // its filter breaks clone3, see the unit
		"ProtectControlGroups":     "",
		"LoadCredential":           "token:/etc/agentd/token",
		"SetCredential":            `token:\n`,
		"NotifyAccess":             "main", // jobs can't speak for the agent
		"Restart":                  "always",
		"StartLimitIntervalSec":    "0",
		"ExecStart":                "/usr/bin/agentd run",
		"ExecReload":               "/usr/bin/agentd reload",
		"ExecStopPost":             "-/usr/bin/agentd ended",
	} {
		if got[key] != want {
			t.Errorf("%s=%s, want %q", key, got[key], want)
		}
	}
}
