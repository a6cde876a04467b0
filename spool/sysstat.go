package spool

import (
	"io/fs"
	"syscall"
)

func sysStat(info fs.FileInfo) (*syscall.Stat_t, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	return st, ok
}
