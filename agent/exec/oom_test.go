package exec

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentd/agent/protocol"
)

// P7: the memory is shared by agent and job, as in a container, and the job eats it. On a host with cgroup v1 the test makes such
// a group; on v2 with a delegated memory controller the attempt's own limit does it.
func TestJobThatEatsAllMemoryDiesAloneAndTheOutcomeSaysSo(t *testing.T) {
	const limit = 192 << 20
	r := newRunner(t, Config{Cgroup: CgroupAuto})
	if r.cg.has("memory") {
		got := begin(t, r, Spec{Command: []string{"/proc/self/exe"}, Env: []string{helper + "=eat"}, Limits: Limits{Memory: limit}}).wait()
		wantOOM(t, got)
		return
	}
	group := "/sys/fs/cgroup/memory/agentd-test-" + strconv.Itoa(os.Getpid())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("neither a v2 memory controller nor a v1 hierarchy to try it with: %v", err)
	}
	defer os.Remove(group)
	if err := os.WriteFile(group+"/memory.limit_in_bytes", []byte(strconv.Itoa(limit)), 0); err != nil {
		t.Skipf("no memory limit to be had: %v", err)
	}
	cmd := osexec.Command("sh", "-c", `echo $$ >"$GROUP/cgroup.procs" && exec "$BINARY"`)
	cmd.Env = append(os.Environ(), helper+"=agent", "GROUP="+group, "BINARY="+os.Args[0], "WORK="+r.cfg.WorkRoot, "CGROUP=off",
		"JOB_HELPER=eat")
	cmd.Env = append(cmd.Env, "SCRIPT=exec "+os.Args[0])
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the agent died: %v; said %q", err, out)
	}
	_, line, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !strings.Contains(line, `"OOM":true`) || !strings.Contains(line, `out of memory: killed by SIGKILL`) {
		t.Errorf("the agent said %s, want OOM", line)
	}
}

func wantOOM(t *testing.T, got Result) {
	t.Helper()
	if !got.OOM || got.Outcome != protocol.Failed || !strings.HasPrefix(got.Error, "out of memory: ") {
		t.Errorf("got %+v, want OOM", got)
	}
}

func helperEat() {
	var eaten [][]byte
	for {
		piece := make([]byte, 1<<20)
		for i := 0; i < len(piece); i += 4096 {
			piece[i] = 1
		}
		eaten = append(eaten, piece)
		_ = len(eaten)
	}
}

// What a memory controller would count is told apart from a plain SIGKILL.
func TestCgroupsCountDecidesWhereThereIsOne(t *testing.T) {
	for _, c := range []struct {
		events string
		want   bool
	}{
		{"low 0\nhigh 0\nmax 12\noom 1\noom_kill 5\noom_group_kill 1\n", true},
		{"low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n", false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "memory.events"), []byte(c.events), 0o600); err != nil {
			t.Fatal(err)
		}
		a := &attempt{cgroup: dir, oomBefore: -1} // -1: the host's counter says yes
		if got := a.ranOut(9, 137); got != c.want {
			t.Errorf("%q: got %v, want %v", c.events, got, c.want)
		}
	}
	a := &attempt{oomBefore: -1, killed: true}
	if a.ranOut(9, 137) {
		t.Error("our own SIGKILL was taken for the kernel's")
	}
}
