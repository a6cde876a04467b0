package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentd/agent"
	"agentd/agent/redact"
)

// redactSettings say where the secrets are that no job's log may hold. The config itself holds none: it is often
// readable, copied and kept under version control.
type redactSettings struct {
	Files []string // see redact.ReadFile
	Env   []string // names of variables of a job's environment
}

// redactOf reads the secrets that the config names. No error quotes one.
func redactOf(s settings) (agent.Redact, error) {
	r := agent.Redact{Env: s.Redact.Env}
	var faults []error
	for _, file := range s.Redact.Files {
		secrets, err := redact.ReadFile(file)
		if err != nil {
			faults = append(faults, fmt.Errorf("redact.files: %w", err))
		}
		r.Secrets = append(r.Secrets, secrets...)
	}
	if _, err := redact.NewSet(r.Secrets...); err != nil && len(faults) == 0 {
		faults = append(faults, fmt.Errorf("redact.files: %w", err))
	}
	if len(faults) > 0 {
		return agent.Redact{}, exit(exitConfig, errors.Join(faults...))
	}
	return r, nil
}

// redactTime is how long the agent may take to put a filter into force: it is a matter of milliseconds.
const redactTime = 10 * time.Second

func (c *cli) redactCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "redact",
		Short: "In a job: keep a secret, read from stdin, out of the job's log from now on",
		Long: "redact is for programs that a job runs: it reads one secret from stdin (up to its end, of several lines too) and returns when\n" +
			"whatever the job prints from then on has [redacted] in its place: as it is, in base64, and URL-encoded.\n\n" +
			"  fetch-token > token && agentd redact < token\n",
		RunE: func(cmd *cobra.Command, _ []string) error { return c.redact(cmd.Context()) },
	}
}

func (c *cli) redact(ctx context.Context) error {
	dir := c.getenv("AGENTD_WORK_DIR")
	if dir == "" {
		return exit(exitUsage, errors.New("AGENTD_WORK_DIR is not set: redact is for processes of a job"))
	}
	secret, err := io.ReadAll(io.LimitReader(c.in, redact.MaxSecret+3))
	if err != nil {
		return err
	}
	defer clear(secret)
	if len(secret) == 0 {
		return exit(exitUsage, errors.New("nothing on stdin: redact reads the secret from there, as in `agentd redact < file`"))
	}
	// By descriptor: the path can be longer than a socket's address holds.
	d, err := os.Open(dir)
	if err != nil {
		return exit(exitUnreachable, err)
	}
	defer d.Close()
	dial := net.Dialer{Timeout: redactTime}
	conn, err := dial.DialContext(ctx, "unix", filepath.Join("/proc/self/fd", fmt.Sprint(d.Fd()), agent.RedactSocket))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return exit(exitDenied, errors.New("not permitted: only the job's own processes may add secrets to it"))
	case err != nil:
		return exit(exitUnreachable, fmt.Errorf("the agent does not listen in %s: %w", dir, errors.Unwrap(err)))
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(redactTime))
	_, err = conn.Write(secret)
	if u, ok := conn.(*net.UnixConn); ok && err == nil {
		err = u.CloseWrite()
	}
	// An agent that refuses the caller doesn't read what it brings: its answer counts more than a failed write.
	line, readErr := bufio.NewReader(conn).ReadString('\n')
	text := strings.TrimSpace(line)
	refusal, refused := strings.CutPrefix(text, "error: ")
	switch {
	case text == "ok":
		return nil
	case refused && strings.HasPrefix(refusal, "only "):
		return exit(exitDenied, errors.New(refusal))
	case refused:
		return errors.New(refusal)
	}
	return exit(exitUnreachable, fmt.Errorf("the agent did not confirm: %w", errors.Join(err, readErr)))
}
