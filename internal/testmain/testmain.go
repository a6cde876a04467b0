// Package testmain is the TestMain of every package with tests. It makes two promises: a test
// reaches nothing but loopback, and it leaves no goroutine behind.
//
// The first is kept by the kernel, not by a hook that code under test could pass by: the test
// process executes itself once more inside a network namespace of its own, in which only the
// loopback device exists. Unix sockets go through as usual, so a database that a make target
// started is reached by its socket's path.
package testmain

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// inside marks a process that already runs in the namespace; its value is the namespace's inode,
// so that a marker inherited by some other process doesn't count.
const inside = "AGENTD_TEST_NETNS"

// born is inside's value in a process that was born in its namespace and has yet to set it up.
const born = "born"

// Run runs m's tests and exits. Call it first in TestMain, after entry points of re-executed helpers.
func Run(m *testing.M, ignore ...goleak.Option) {
	if err := isolate(); err != nil {
		fmt.Fprintf(os.Stderr, "testmain: no network namespace of its own: %v\n"+
			"Tests may dial loopback only, and this keeps them to it. Run them as root, or where\n"+
			"unprivileged user namespaces are allowed (sysctl kernel.unprivileged_userns_clone=1).\n", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, ignore...)
}

func isolate() error {
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	switch os.Getenv(inside) {
	case ns:
		return nil
	case born: // the child of asUser
		if err := loopbackUp(); err != nil {
			return err
		}
		return os.Setenv(inside, ns)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	// Namespaces belong to threads: the one that leaves must be the one that executes.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		return asUser(exe)
	} else if err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if ns, err = os.Readlink("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if err := os.Setenv(inside, ns); err != nil {
		return err
	}
	return unix.Exec(exe, os.Args, os.Environ())
}

// asUser is the way for those who aren't root: a child in a user namespace of its own, in which it may
// make the network's. A process with threads can't do that to itself. It doesn't return but with an error.
func asUser(exe string) error {
	cmd := exec.Command(exe, os.Args[1:]...) //nolint:gosec,noctx // its own binary; it ends with its child
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"="+born)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err == nil {
		os.Exit(0)
	}
	return err
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
