package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"agentd/agent/exec"
	"agentd/agent/journal"
	"agentd/agent/protocol"
)

// lifeName is the file in the runtime directory that tells a start how the process before it ended. The agent
// writes it as it starts, and whoever watches over the service adds the end (NoteEnd): a process that is
// killed can't say why.
const lifeName = "life.json"

// life is that file.
type life struct {
	BootID string `json:"bootId"`
	exec.Kills
	End *End `json:"end,omitempty"` // nil while the process lives, or where nobody noted its end
}

// End is how the agent's process ended, in the words of systemd's $SERVICE_RESULT and $EXIT_STATUS.
type End struct {
	Result string `json:"result"` // success, exit-code, signal, core-dump, watchdog, timeout, oom-kill …
	Status string `json:"status"` // an exit code, or a signal's name without SIG
	OOM    bool   `json:"oom"`    // by the kernel's OOM killer, so far as its counts tell
}

// NoteEnd notes how the agent that ran with this runtime directory ended. It is called after the end and before the
// next start, within the service's cgroup. The first end counts until a start has read it: a start that failed in between, on a
// faulty config for instance, killed no job.
func NoteEnd(runtimeDir string, e End) error {
	l, err := readLife(runtimeDir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && l.End != nil {
		return nil
	}
	if err != nil {
		return err
	}
	// Only SIGKILL can have been the OOM killer's. The counts are of the agent's own cgroup, where connectors live as well,
	// or of the whole host where there is no such cgroup: good evidence, no proof.
	e.OOM = e.Result == "signal" && e.Status == "KILL" && exec.AgentKills().Since(l.Kills)
	l.End = &e
	return l.write(runtimeDir)
}

func readLife(dir string) (l life, err error) {
	text, err := os.ReadFile(filepath.Join(dir, lifeName))
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return life{}, fmt.Errorf("agent: earlier end: %w", err)
	}
	return l, nil
}

// write needs no sync: after a reboot it says nothing.
func (l life) write(dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	path := filepath.Join(dir, lifeName)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

// takeLife reads how the process before this one ended, and begins a file for this one.
func (a *Agent) takeLife() (before *End) {
	l, err := readLife(a.cfg.RuntimeDir)
	if err == nil && l.BootID == a.bootID {
		before = l.End
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.log.Warn("how the agent ended before is not known", zap.Error(err))
	}
	if before != nil && before.Result != "success" {
		a.log.Warn("process before this one ended", zap.String("why", before.why()))
	}
	if err := (life{BootID: a.bootID, Kills: exec.AgentKills()}).write(a.cfg.RuntimeDir); err != nil {
		a.log.Warn("how this process will end can't be noted", zap.Error(err))
	}
	return before
}

// why says what ended the jobs of the process before this one; nil = nobody noted it.
func (e *End) why() string {
	switch {
	case e == nil:
		return "the agent died (killed, out of memory, or crashed)"
	case e.OOM:
		return "the agent was killed by the kernel, out of memory (OOM)"
	case e.Result == "oom-kill":
		return "the agent's service was ended by its OOM policy, out of memory (OOM)"
	case e.Result == "watchdog":
		return "the agent made no progress and was ended by the watchdog"
	case e.Result == "timeout":
		return "the agent did not stop in time and was killed"
	case e.Result == "signal":
		return "the agent was killed (SIG" + e.Status + ")"
	case e.Result == "core-dump":
		return "the agent crashed (SIG" + e.Status + ")"
	case e.Result == "exit-code":
		return "the agent crashed (exit code " + e.Status + ")"
	}
	return "the agent ended"
}

// noteLost gives each attempt that an earlier process began and did not see the end of its outcome, on disk at once: the
// next start will know of the end of this process only.
func (a *Agent) noteLost(left []journal.Entry, before *End) {
	for i, e := range left {
		if e.Completion != nil || e.Proc.PID == 0 && e.StartedAt.IsZero() {
			continue
		}
		why := before.why()
		if e.BootID != a.bootID {
			why = "the host rebooted"
		}
		c := &protocol.Completion{
			Attempt: e.Attempt, LeaseToken: e.LeaseToken, Outcome: protocol.Lost, Error: why + " while the job ran",
			StartedAt: e.StartedAt, FinishedAt: time.Now(),
		}
		left[i].Completion = c
		if err := a.journal.SetCompletion(e.JobID, e.Attempt, *c); err != nil {
			a.log.Error("outcome could not be written down", zap.String("job", e.JobID), zap.Error(err))
		}
	}
}
