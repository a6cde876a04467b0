package exec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
)

// How Config.Cgroup is chosen when it isn't a path.
const (
	CgroupAuto = "auto" // use cgroup v2 where it was delegated to this process, else the shim alone
	CgroupOff  = "off"  // the shim alone
)

// Config says where and with what attempts run.
type Config struct {
	// WorkRoot is the directory that holds the attempts' work directories. Absolute; made (0711) when missing.
	// Every directory above it must let a handler's `user:` pass.
	WorkRoot string
	// Cgroup is CgroupAuto (default), CgroupOff, or the absolute path of a cgroup v2 directory that is ours alone.
	Cgroup string
	// Environ is the agent's own environment, of which the job gets the names in the allow-list. nil = a PATH and nothing else.
	Environ []string
	// PassEnv are further names of Environ that jobs get.
	PassEnv []string
	// CoreLimit is the soft limit on core files (RLIMIT_CORE, bytes) that jobs start with, for a process that gave up its
	// own. 0 = they inherit the process's.
	CoreLimit uint64
	// PipeWait is how long a pipe that somebody holds open keeps an attempt from ending after its main
	// process has: default 3 s, so that with all that follows the attempt ends within 5 s on a busy host, too.
	PipeWait time.Duration
	// KillWait is how long SIGKILL may take to work before a process counts as one that can't be killed. Default 10 s:
	// a process that writes out a large core or waits for a slow disk needs seconds, a stuck one needs for ever.
	KillWait time.Duration
	Logger   *zap.Logger // nil = none
}

func (c Config) withDefaults() Config {
	if c.Cgroup == "" {
		c.Cgroup = CgroupAuto
	}
	if c.PipeWait <= 0 {
		c.PipeWait = 3 * time.Second
	}
	if c.KillWait <= 0 {
		c.KillWait = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if !filepath.IsAbs(c.WorkRoot) {
		errs = append(errs, fmt.Errorf("workRoot %q is not an absolute path", c.WorkRoot))
	}
	if c.Cgroup != CgroupAuto && c.Cgroup != CgroupOff && !filepath.IsAbs(c.Cgroup) {
		errs = append(errs, fmt.Errorf("cgroup %q is neither auto, off nor an absolute path", c.Cgroup))
	}
	for _, name := range c.PassEnv {
		if !validName(name) {
			errs = append(errs, fmt.Errorf("passEnv: %q is not a name of an environment variable", name))
		}
	}
	return errors.Join(errs...)
}

// Limits bound what one attempt may use. Zero = no limit. They hold where the cgroup has the controller;
// elsewhere the attempt runs without, and the log says so once.
type Limits struct {
	Memory int64   // bytes, swap included
	Pids   int64   // processes and threads
	CPUs   float64 // 1.5 = one and a half cores
}

// Spec is one attempt to run.
type Spec struct {
	JobID   string
	Attempt int64
	Type    string
	Command []string // Command[0] is looked up in the PATH that the job gets, unless it has a slash
	Stdin   []byte   // the payload
	// StdinFile is the command's stdin instead, for one that is talked to while it runs: a pipe's read end. It stays the caller's.
	StdinFile *os.File
	Env       []string // the job's own KEY=VALUE; names are checked, the agent's own and the loader's are refused

	Timeout    time.Duration  // from the command's start; 0 = none
	Grace      time.Duration  // between StopSignal and SIGKILL
	StopSignal syscall.Signal // 0 = SIGTERM; goes to every process of the tree
	Limits     Limits
	User       string // name or uid to run as; needs root. Empty = the agent's own

	KeepWorkDir bool // leave the work directory behind, as kept-…; a remark says where

	// Stdout and Stderr get the pipe's read end, an *os.File, and must read it until EOF or an error.
	// They may be slow: the job then waits. nil = the output is read and thrown away.
	Stdout, Stderr io.ReaderFrom
	// Remark takes the runner's own remarks on the attempt. nil = none wanted.
	Remark func(text string)
	// Started is told what to look for after a crash. It is called before the command itself runs;
	// an error from it ends the attempt before it started. nil = nobody to tell.
	Started func(Proc) error
	// Exited is told the outcome as soon as every process of the tree has ended. Run returns once the readers
	// are done, too, and they may be held up by back-pressure. nil = nobody to tell.
	Exited func(Result)
	// GraceFor is the grace period for the cause that ended the context (or ErrTimedOut). nil = Grace.
	GraceFor func(cause error) time.Duration
	// Hurry ends the grace period early when it is closed.
	Hurry <-chan struct{}
}

// Proc is what is needed to find an attempt's processes again after the agent's death, and to touch no others.
type Proc struct {
	PID        int    `json:"pid"`        // the shim's; it leads no process group of the job's
	StartTicks uint64 `json:"startTicks"` // its start in clock ticks after boot: with BootID, what tells it from a later process of that pid
	BootID     string `json:"bootId"`
	Cgroup     string `json:"cgroup,omitempty"` // directory; empty = none
	WorkDir    string `json:"workDir"`          // unique to the attempt, and in the environment of its processes
}

// Result is how an attempt ended.
type Result struct {
	// Outcome: Succeeded on exit code 0; TimedOut when Spec.Timeout ended it; Cancelled when the context did (whatever its cause:
	// the caller knows which ones mean Lost) and the exit code isn't 0; else Failed.
	Outcome  protocol.Outcome
	ExitCode int    // 128+n after signal n, 126/127 when it could not start: what a shell would say
	Signal   string // name of the signal that ended the main process, as SIGKILL
	Error    string // one sentence for people; empty on success
	OOM      bool
	// NotStarted: the command itself never ran.
	NotStarted bool
	JSON       json.RawMessage // what the job left in AGENTD_RESULT; valid JSON of at most MaxResult bytes, or nil
	StartedAt  time.Time
	FinishedAt time.Time
	Cause      error // what ended the attempt early: the context's cause or ErrTimedOut; nil when it ended by itself
	// Remains: processes that even SIGKILL didn't end. Error says which; the runner goes on trying.
	Remains bool
}

// MaxResult is the protocol's limit on a result.
const MaxResult = 256 << 10

// ErrTimedOut is the cause when Spec.Timeout ended an attempt.
var ErrTimedOut = errors.New("exec: timed out")
