package redact_test

import "golang.org/x/sys/unix"

const errAgain = unix.EAGAIN

func readFD(fd int, b []byte) (int, error) { return unix.Read(fd, b) }
