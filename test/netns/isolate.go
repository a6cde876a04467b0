package netns

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// isolated marks a process that Isolate has executed; its value is the namespace.
const isolated = "AGENTD_OWN_NETNS"

// Isolate executes this program once more in a network namespace of its own, in which only loopback exists, and
// does nothing there. It comes back where it may not (no root), with the reason. Call it before anything else.
func Isolate(ctx context.Context) error {
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil || os.Getenv(isolated) == ns {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // namespaces belong to threads: the one that leaves must be the one that executes
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("netns: a namespace of its own: %w", err)
	}
	if err := run(ctx, "ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	if ns, err = os.Readlink("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	return unix.Exec(exe, os.Args, append(os.Environ(), isolated+"="+ns))
}
