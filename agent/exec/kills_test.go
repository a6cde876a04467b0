package exec

import (
	"os"
	"path/filepath"
	"testing"
)

// The agent's own cgroup decides where it counts, and the host where there is none.
func TestAgentsOOMKillIsToldByTheClosestCount(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for name, c := range map[string]struct {
		before, now Kills
		want        bool
	}{
		"killed":                                {Kills{n(0), 4}, Kills{n(1), 5}, true},
		"a job was, in its own cgroup":          {Kills{n(0), 4}, Kills{n(0), 5}, false},
		"killed before, in a cgroup that lasts": {Kills{n(1), 5}, Kills{n(1), 5}, false},
		"the cgroup is new":                     {Kills{nil, 4}, Kills{n(1), 5}, true},
		"no cgroup, somebody was":               {Kills{nil, 4}, Kills{nil, 5}, true},
		"no cgroup, nobody was":                 {Kills{nil, 4}, Kills{nil, 4}, false},
		"the cgroup is gone":                    {Kills{n(0), 4}, Kills{nil, 5}, true},
	} {
		if got := c.now.Since(c.before); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestKillsAreReadOfTheGroupItself(t *testing.T) {
	dir := t.TempDir()
	if k := killsIn(dir, Kills{Host: 3}); k.Agent != nil || k.Host != 3 {
		t.Errorf("without a controller: %+v", k)
	}
	for file, text := range map[string]string{"memory.events": "oom_kill 9\n", "memory.events.local": "low 0\nhigh 0\nmax 2\noom 1\noom_kill 2\noom_group_kill 0\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if k := killsIn(dir, Kills{}); k.Agent == nil || *k.Agent != 2 {
		t.Errorf("got %+v, want 2, without what happened below", k)
	}
}
