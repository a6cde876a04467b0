package exec

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	lastSignal = 64
	sigIgn     = 1 // the kernel's SIG_IGN
)

// sigaction is the kernel's own structure, the same on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// heedIgnored gives signals that this process was born ignoring (under nohup, by a careless parent) their default
// action again: ignoring is inherited by exec, and a job should not be deaf because whoever started the agent was.
func heedIgnored() {
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		var now sigaction
		const maskSize = unsafe.Sizeof(now.mask)
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), maskSize, 0, 0); errno != 0 || now.handler != sigIgn { //nolint:gosec // the call's own structure
			continue
		}
		byDefault := sigaction{mask: now.mask}
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&byDefault)), 0, maskSize, 0, 0) //nolint:gosec // as above; SIGKILL and SIGSTOP refuse, and can't be ignored
	}
}
