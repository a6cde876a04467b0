package stack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a child of ours with its output in a file.
type Process struct {
	Name string
	Log  string // path of its combined output
	cmd  *exec.Cmd
}

// StartProcess runs argv with its output appended to logPath. The kernel ends it with this process's
// main thread, so a killed demo leaves nothing running.
func StartProcess(name, logPath string, env []string, argv ...string) (*Process, error) {
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is ours to pass on
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &Process{Name: name, Log: logPath, cmd: cmd}, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends sig; a process that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Kill ends the process at once, as a power cut or the OOM killer would, and waits for it.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	_ = p.cmd.Wait() // "signal: killed" is what was asked for
	return nil
}

// Stop sends SIGTERM and waits; after patience it kills, which is an error.
func (p *Process) Stop(patience time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.AfterFunc(patience, func() { _ = p.Signal(syscall.SIGKILL) })
	err := p.cmd.Wait()
	if !timer.Stop() {
		return fmt.Errorf("stop %s: still running %v after SIGTERM: killed; its output is in %s", p.Name, patience, p.Log)
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w; its output is in %s", p.Name, err, p.Log)
	}
	return nil
}

// Tail is the end of the process's output, for an error message.
func (p *Process) Tail() string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	const most = 4096
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return string(b)
}
