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
	"runtime"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// inside marks a process that already runs in the namespace; its value is the namespace's inode,
// so that a marker inherited by some other process doesn't count.
const inside = "AGENTD_TEST_NETNS"

// Run runs m's tests and exits. Call it first in TestMain, after entry points of re-executed helpers.
func Run(m *testing.M, ignore ...goleak.Option) {
	if err := isolate(); err != nil {
		fmt.Fprintf(os.Stderr, "testmain: no network namespace of its own: %v\n"+
			"Tests may dial loopback only, and this keeps them to it. Run them as root, or where\n"+
			"unprivileged user namespaces are allowed.\n", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, ignore...)
}

func isolate() error {
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	if os.Getenv(inside) == ns {
		return nil
	}
	// Namespaces belong to threads: the one that leaves must be the one that executes.
	runtime.LockOSThread()
	if err := unshare(); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	ns, err = os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.Setenv(inside, ns); err != nil {
		return err
	}
	return unix.Exec(exe, os.Args, os.Environ()) //nolint:gosec // its own binary, its own arguments
}

// unshare leaves the network namespace. A multi-threaded process can't make a user namespace,
// so without CAP_SYS_ADMIN this fails, and Run says what to do.
func unshare() error {
	err := unix.Unshare(unix.CLONE_NEWNET)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("unshare: %w (not root)", err)
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
