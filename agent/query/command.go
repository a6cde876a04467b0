package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"agentd/agent/protocol"
)

// leaveTime is how long a connector's pipes may outlive it: a grandchild that holds one must not hold up an answer.
const leaveTime = 100 * time.Millisecond

// Command is a connector: a program that answers queries of one type.
type Command struct {
	Argv []string // argv[0] is the program's path
	Env  []string // the whole environment
	Dir  string   // empty: /

	stderr atomic.Int64 // bytes that were written there and thrown away
}

// Discarded is how many bytes connectors wrote to stderr. They are thrown away: nobody can say what is in them.
func (c *Command) Discarded() int64 { return c.stderr.Load() }

// Once runs the command for one query: the query as JSON on stdin, the page ({"items":[…],"next":""}) as JSON on stdout. An exit
// code other than 0 with {"code":…,"retryAfter":…} on stdout is the connector's error. AGENTD_QUERY_TYPE,
// AGENTD_QUERY_CONNECTOR and AGENTD_QUERY_REMAINING_MS are in its environment. It is a Handler.
func (c *Command) Once(ctx context.Context, q protocol.Query) (protocol.Page, error) {
	cmd := c.command(ctx)
	cmd.Env = append(cmd.Env, "AGENTD_QUERY_TYPE="+q.Type, "AGENTD_QUERY_CONNECTOR="+q.Connector, fmt.Sprintf("AGENTD_QUERY_REMAINING_MS=%d", remaining(ctx)))
	cmd.Stdin = bytes.NewReader(q.Query)
	out := &bounded{most: MaxPage}
	defer out.wipe()
	cmd.Stdout = out
	err := cmd.Run()
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case out.over:
		return protocol.Page{}, &Failure{Code: CodeTooBig}
	case err == nil:
		var page protocol.Page
		if json.Unmarshal(out.b.Bytes(), &page) != nil || page.Items == nil {
			return protocol.Page{}, &Failure{Code: CodeFailed}
		}
		return page, nil
	case exited && exit.Exited():
		var r reply
		if json.Unmarshal(out.b.Bytes(), &r) != nil || r.Code == "" {
			return protocol.Page{}, &Failure{Code: CodeFailed}
		}
		return r.result()
	}
	return protocol.Page{}, &Failure{Code: CodeFailed}
}

// command prepares a process of its own group, which ends as a whole.
func (c *Command) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...) //nolint:gosec // the operator's config names the command
	cmd.Env = append([]string(nil), c.Env...)
	cmd.Dir = c.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.Stderr = (*discard)(&c.stderr)
	// Pdeathsig: a connector doesn't outlive an agent that was killed. It is sent when the parent thread
	// ends, and Go ends threads only when a locked goroutine returns, which nothing here does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return killGroup(cmd.Process) }
	cmd.WaitDelay = leaveTime
	return cmd
}

func killGroup(p *os.Process) error {
	if err := syscall.Kill(-p.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// remaining is the query's time in milliseconds.
func remaining(ctx context.Context) int64 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(0, time.Until(deadline).Milliseconds())
}

// bounded keeps up to most bytes and remembers that there were more.
type bounded struct {
	b    bytes.Buffer
	most int
	over bool
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.b.Len()+len(p) > w.most {
		w.over = true
		return 0, errors.New("query: the page is too large") // ends the copy: the connector gets SIGPIPE
	}
	return w.b.Write(p)
}

func (w *bounded) wipe() { clear(w.b.Bytes()) }

// discard counts what is written and keeps nothing.
type discard atomic.Int64

func (d *discard) Write(p []byte) (int, error) {
	(*atomic.Int64)(d).Add(int64(len(p)))
	return len(p), nil
}

var _ io.Writer = (*discard)(nil)
