package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	fileName    = "identity.json"
	pendingName = "identity.json.new"
	fileVersion = 1
)

// record is identity.json.
type record struct {
	Version  int    `json:"version"`
	Seed     []byte `json:"privateKey"` // the Ed25519 seed, 32 bytes
	AgentID  string `json:"agentId"`    // "" until the first link was answered
	ServerID string `json:"serverId"`   // the control plane that gave the id
}

func newRecord() (record, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return record{}, err
	}
	return record{Version: fileVersion, Seed: seed}, nil
}

func (r record) key() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(r.Seed) }

// load reads dir/name; fs.ErrNotExist if there is none.
func load(dir, name string) (record, error) {
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		return record{}, fmt.Errorf("identity: %w", err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, &DamagedError{Path: path, Why: err.Error()}
	}
	switch {
	case r.Version != fileVersion:
		return record{}, &DamagedError{Path: path, Why: fmt.Sprintf("version is %d, not %d", r.Version, fileVersion)}
	case len(r.Seed) != ed25519.SeedSize:
		return record{}, &DamagedError{Path: path, Why: fmt.Sprintf("privateKey is %d bytes, not %d", len(r.Seed), ed25519.SeedSize)}
	}
	return r, nil
}

// DamagedError says that the identity's file can't be read as one. It is left as it is.
type DamagedError struct{ Path, Why string }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("identity: %s is damaged (%s): put it back from a backup, or move it away and link with a token bound to the old id (agentd link --agent-id ID)",
		e.Path, e.Why)
}

// save replaces dir/name durably: after a power cut it is the old one or the new one.
func (r record) save(dir, name string) error {
	data, err := json.MarshalIndent(r, "", "  ") //nolint:gosec // keeping the key pair is what the file is for
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	f, err := os.CreateTemp(dir, name+".*.tmp") // 0600 by itself
	if err != nil {
		return notWritable(dir, err)
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("identity: write %s: %w", filepath.Join(dir, name), err), os.Remove(f.Name()))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("identity: sync %s: %w", dir, err)
	}
	return nil
}

// prepare makes dir and makes sure that it can be written, before anything depends on it.
// A full disk is no reason to refuse: an agent starts on one, and its identity is there already.
func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return notWritable(dir, err)
	}
	f, err := os.CreateTemp(dir, ".writable.*.tmp")
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return nil
	}
	if err != nil {
		return notWritable(dir, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// ErrNotWritable says that the state directory can't be written, so no identity may depend on it.
var ErrNotWritable = errors.New("not writable")

func notWritable(dir string, err error) error {
	fix := "give the agent's user a writable state_dir"
	switch {
	case errors.Is(err, syscall.EROFS):
		fix = "it is on a read-only file system; mount it writable or set state_dir elsewhere"
	case errors.Is(err, fs.ErrPermission):
		fix = fmt.Sprintf("make it the property of the agent's user (uid %d)", os.Geteuid())
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		fix = "the disk is full; free some space"
	}
	return fmt.Errorf("identity: the state directory %s is %w: %w: %s", dir, ErrNotWritable, err, fix)
}

// narrow takes away others' rights to the key pair, as after a restore from a backup.
func narrow(dir string) (narrowed bool, err error) {
	path := filepath.Join(dir, fileName)
	info, err := os.Stat(path)
	if err != nil {
		return false, fmt.Errorf("identity: %w", err)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return false, nil
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return false, fmt.Errorf("identity: %s can be read by others, and that can't be changed: %w", path, err)
	}
	return true, nil
}
