package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// minAdminToken is the least an admin token may have: 16 characters of somebody's own choice. Ours have 26, 128 bits.
const minAdminToken = 16

// adminToken reads the admin token, or makes one. A file that others can read is refused: whoever
// holds the token runs commands on every agent.
func adminToken(file string) (token string, written bool, err error) {
	if err := writeToken(file, "admin_"+rand.Text()); err == nil {
		written = true
	} else if !errors.Is(err, fs.ErrExist) {
		return "", false, configError(fmt.Errorf("admin token: %w; --admin-token-file names a file that can be written", err))
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", false, configError(fmt.Errorf("admin token: %w", err))
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", false, &exitError{exitConfig, fmt.Errorf("admin token: others can read or write %s (mode %04o): chmod 600 it, and make a new token if somebody did", file, info.Mode().Perm())}
	}
	if token, err = readToken(file); err != nil {
		return "", false, configError(err)
	}
	if len(token) < minAdminToken {
		return "", false, &exitError{exitConfig, fmt.Errorf("admin token: %s holds fewer than %d characters: remove it, and a new one is made", file, minAdminToken)}
	}
	return token, written, nil
}

// writeToken makes the file whole or not at all: it appears under its name, linked from a synced
// temporary one, only when it is complete, and never over one that is there.
func writeToken(file, token string) error {
	if _, err := os.Lstat(file); err == nil {
		return fs.ErrExist
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".admin-token-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(token + "\n")
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Link(tmp.Name(), file)
}
