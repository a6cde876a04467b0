package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"agentd/agent/identity"
	"agentd/agent/protocol"
)

// asOwner calls f as the owner of dir where root calls for a dir that isn't root's, as in the packages: what f
// writes must belong to the agent's user, and root must not follow links that another user may plant.
// Only the effective ids change, for the process as a whole, so f must be all that it does.
func asOwner(dir string, f func() error) (err error) {
	uid, gid, ok := owner(dir)
	if !ok || os.Geteuid() != 0 || uid == 0 {
		return f()
	}
	groups, err := syscall.Getgroups()
	if err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	defer func() {
		err = errors.Join(err, syscall.Setresuid(-1, 0, -1), syscall.Setresgid(-1, 0, -1), syscall.Setgroups(groups))
	}()
	if err := errors.Join(syscall.Setgroups([]int{gid}), syscall.Setresgid(-1, gid, -1), syscall.Setresuid(-1, uid, -1)); err != nil {
		return fmt.Errorf("become the owner of %s: %w", dir, err)
	}
	return f()
}

// owner is who dir belongs to; not ok where there is no dir yet.
func owner(dir string) (uid, gid int, ok bool) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(st.Uid), int(st.Gid), true
}

// readNow asks for the token while we are who may read it; what is wrong with it is said only if it's needed.
func readNow(source identity.TokenSource) identity.TokenSource {
	token, err := source()
	return func() (string, error) { return token, err }
}

// commentedServer is the line that the package's config has in the place of a server.
var commentedServer = regexp.MustCompile(`(?m)^#[ \t]*server:.*$`)

// keepServer prepares that the config file names server, with `insecure: true` if it is one that the agent refuses without,
// and changes nothing where it names one already. It answers what the file names in the end ("" = there is no file) and
// the change, on disk beside the file: nil = none is needed.
func keepServer(path, server string) (named string, change *change, err error) {
	old, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, fmt.Errorf("config: %w", err)
	}
	has := serverIn(old)
	if has.Server != "" && has.Server != server {
		return has.Server, nil, nil
	}
	var lines []string
	if has.Server == "" {
		lines = append(lines, "server: "+quote(server))
	}
	if _, err := protocol.ParseServer(server, has.Insecure); err != nil {
		lines = append(lines, "insecure: true")
	}
	if len(lines) == 0 {
		return server, nil, nil
	}
	added := strings.Join(lines, "\n")
	var text []byte
	if at := commentedServer.FindIndex(old); at != nil && has.Server == "" {
		text = slices.Concat(old[:at[0]], []byte(added), old[at[1]:])
	} else {
		text = slices.Concat([]byte(added+"\n"), old)
	}
	got := serverIn(text)
	if _, err = protocol.ParseServer(got.Server, got.Insecure); err == nil && got.Server == server {
		change, err = prepare(path, text)
	} else {
		err = errors.New("it is not of a shape that can be added to")
	}
	if err != nil {
		return "", nil, fmt.Errorf("config: the server can't be written into %s: %w; set `%s` there yourself", path, err, strings.Join(lines, "` and `"))
	}
	return server, change, nil
}

// serverIn is the server that a config file's text names, and whether it may be insecure; nothing where the text has faults.
func serverIn(text []byte) settings {
	var s settings
	r := &reader{lines: map[string]int{}}
	if s.read(r, text); len(r.faults) > 0 {
		return settings{}
	}
	return settings{Server: s.Server, Insecure: s.Insecure}
}

// change is a file's new text, on disk beside it.
type change struct{ path, temp string }

// prepare writes text with the owner and rights of the file at path, which commit replaces.
func prepare(path string, text []byte) (_ *change, err error) {
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".agentd-*.yaml")
	if err != nil {
		return nil, err
	}
	c := &change{path, f.Name()}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(info.Mode().Perm()))
	if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		err = errors.Join(err, f.Chown(int(st.Uid), int(st.Gid)))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		c.discard()
		return nil, err
	}
	return c, nil
}

// commit puts the new text in place: after a crash it is the old one or the new one.
func (c *change) commit() error {
	if c == nil {
		return nil
	}
	if err := os.Rename(c.temp, c.path); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// discard removes what wasn't committed.
func (c *change) discard() {
	if c != nil {
		_ = os.Remove(c.temp) // gone, after commit
	}
}
