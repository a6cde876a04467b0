package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"agentd/agent/exec"
	"agentd/agent/redact"
)

// Redact says which secrets no job's log may hold.
type Redact struct {
	Secrets []string // of every job
	Env     []string // names of variables: their values in a job's environment are secrets of that job
}

const (
	// SecretsVar of a job's environment lists, with blanks or commas between them, further names like Redact.Env.
	SecretsVar = "secrets"
	// RedactSocket is where a job's processes add secrets while they run, in the work directory (AGENTD_WORK_DIR).
	RedactSocket = ".agentd.sock"
	// redactTime bounds one call on the socket: the value is at most redact.MaxSecret, and the caller has it at hand.
	redactTime = 5 * time.Second
	// redactAtOnce bounds the calls under way of one job, which costs it a goroutine and some KiB each.
	redactAtOnce = 8
)

// secretsOf returns the secrets that every job has; names of variables come along.
func (a *Agent) secretsOf() (*redact.Set, []string) {
	a.mu.Lock()
	r := a.redact
	a.mu.Unlock()
	set, err := redact.NewSet(r.Secrets...)
	if err != nil { // the config's reader refuses such values before they get here
		a.log.Error("some secrets can't be redacted", zap.Error(err))
	}
	return set, r.Env
}

// Redact adds a secret to those that the attempt's log must not hold. When it returns, output that is printed
// from then on is filtered.
func (a *Attempt) Redact(secret string) error { return a.secrets.Add(secret) }

// redactEnv makes secrets of the variables that the config or the job names. Its errors quote no value, and
// none of the job's names either: whoever confuses the two must not find a password in the log.
func (a *Attempt) redactEnv(env []string) error {
	value := func(name string) (v string, ok bool) {
		for _, kv := range slices.Backward(env) { // the last one counts
			if k, v, _ := strings.Cut(kv, "="); k == name {
				return v, true
			}
		}
		return "", false
	}
	for _, name := range a.secretVars {
		if v, ok := value(name); ok && v != "" {
			if err := a.Redact(v); err != nil {
				return fmt.Errorf("env: %s: %w", name, err)
			}
		}
	}
	names := strings.FieldsFunc(a.Job.Env[SecretsVar], func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' })
	for i, name := range names {
		v, ok := value(name)
		if !ok {
			return fmt.Errorf("env: %s: entry %d is not the name of one of the job's variables", SecretsVar, i+1)
		}
		if v == "" {
			continue
		}
		if err := a.Redact(v); err != nil {
			return fmt.Errorf("env: %s: entry %d: %w", SecretsVar, i+1, err)
		}
	}
	return nil
}

// redactSocket takes secrets from the attempt's own processes while they run.
type redactSocket struct {
	dir      *os.File // the work directory
	listener *net.UnixListener
	proc     exec.Proc
	set      *redact.Set
	log      *zap.Logger
}

// listenRedact opens the socket in the work directory, before anything of the job runs.
func listenRedact(p exec.Proc, set *redact.Set, log *zap.Logger) (*redactSocket, error) {
	dir, err := os.OpenFile(p.WorkDir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	// By the descriptor: the path itself can be longer than the 107 bytes that a socket's address holds.
	path := filepath.Join("/proc/self/fd", fmt.Sprint(dir.Fd()), RedactSocket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	l.SetUnlinkOnClose(false)
	s := &redactSocket{dir: dir, listener: l, proc: p, set: set, log: log}
	if err := openToJob(int(dir.Fd())); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// openToJob lets the job's user write to the socket. The directory is closed to all others; the mode is changed
// on the socket itself, not on whatever stands under its name by then.
func openToJob(dir int) error {
	fd, err := unix.Openat(dir, RedactSocket, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Nlink != 1 {
		return errors.New("agent: another file took the socket's place")
	}
	const all = 0o666
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), all)
}

// close ends serve.
func (s *redactSocket) close() error {
	_ = unix.Unlinkat(int(s.dir.Fd()), RedactSocket, 0) // mostly gone with the directory already
	return errors.Join(s.listener.Close(), s.dir.Close())
}

// serve answers until close. Each call brings one secret, up to its end of file, and is answered by "ok", or by
// what is wrong, once the filter is in force.
func (s *redactSocket) serve() {
	var wg sync.WaitGroup
	defer wg.Wait()
	places := make(chan struct{}, redactAtOnce)
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				s.log.Warn("redaction's socket failed", zap.Error(err))
			}
			return
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			defer func() { _ = c.Close() }() // the answer was written, or its reader is gone
			_ = c.SetDeadline(time.Now().Add(redactTime))
			answer := "ok\n"
			if err := s.take(c); err != nil {
				answer = "error: " + err.Error() + "\n"
			}
			_, _ = io.WriteString(c, answer) // the caller may be gone
		})
	}
}

// take adds what one call brings.
func (s *redactSocket) take(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) { cred, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cred == nil {
		return errors.New("the caller could not be told")
	}
	if !s.proc.Holds(int(cred.Pid)) {
		return errors.New("only the job's own processes may add secrets to it")
	}
	secret, err := io.ReadAll(io.LimitReader(c, redact.MaxSecret+3)) // two bytes of a line end may follow; one more is too many
	if err != nil {
		return errors.New("the value did not arrive")
	}
	defer clear(secret)
	return s.set.Add(string(secret))
}
