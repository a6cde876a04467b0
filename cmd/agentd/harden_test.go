package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestMemoryIsKeptFromDisk: jobs get the limit that the agent had.
func TestMemoryIsKeptFromDisk(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &was); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &was); err != nil {
			t.Error(err)
		}
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
			t.Error(err)
		}
	})
	got, err := keepFromDisk()
	if err != nil || got != was.Cur {
		t.Errorf("limit for jobs %d, %v; want %d", got, err, was.Cur)
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &now); err != nil || now != (unix.Rlimit{Cur: 0, Max: was.Max}) {
		t.Errorf("own limit %+v, %v; want 0 of %d", now, err, was.Max)
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 0 {
		t.Errorf("dumpable %d, %v; want 0", dumpable, err)
	}
}
