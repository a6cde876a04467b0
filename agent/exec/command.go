package exec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// What a shell would say of a command that it can't start.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// account is whom a job runs as.
type account struct {
	name, home string
	cred       credential
}

func lookupUser(name string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("user %q: the agent doesn't run as root, so it can't run jobs as somebody else; drop `user:` from the handler", name)
	}
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("user %q is unknown on this host; create it, or correct `user:` in the handler", name)
		}
	}
	ids := []string{u.Uid, u.Gid}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("user %q: its groups: %w", name, err)
	}
	var nums []uint32
	for _, id := range append(ids, groups...) {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %q: id %q: %w", name, id, err)
		}
		nums = append(nums, uint32(n))
	}
	return &account{
		name: u.Username, home: u.HomeDir,
		cred: credential{UID: nums[0], GID: nums[1], Groups: nums[2:]},
	}, nil
}

// findCommand resolves name as execvp would, in the job's own PATH. A relative one with a slash is meant from the work
// directory, where a job has nothing yet, so it is refused instead of failing there.
func findCommand(name, path string) (string, int, error) {
	if name == "" {
		return "", exitNotFound, errors.New("no command: the handler's `command` is empty")
	}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			return "", exitNotFound, fmt.Errorf("command %s: give its absolute path in the handler's `command`", name)
		}
		code, err := executable(name)
		return name, code, err
	}
	code, err := exitNotFound, fmt.Errorf("command %s was not found in PATH=%s; give its absolute path in the handler's `command`, or install it", name, path)
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // never the current directory: it is the job's
		}
		file := filepath.Join(dir, name)
		c, e := executable(file)
		if e == nil {
			return file, 0, nil
		}
		if c == exitNotExecutable && code == exitNotFound {
			code, err = c, e
		}
	}
	return "", code, err
}

func executable(file string) (int, error) {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return exitNotFound, fmt.Errorf("command %s doesn't exist; correct the handler's `command`, or install it", file)
	case err != nil:
		return exitNotExecutable, fmt.Errorf("command: %w", err)
	case info.IsDir():
		return exitNotExecutable, fmt.Errorf("command %s is a directory", file)
	case info.Mode()&0o111 == 0:
		return exitNotExecutable, fmt.Errorf("command %s is not executable (chmod +x %s)", file, file)
	}
	return 0, nil
}

// explain says what an errno of fork, setuid, chdir or execve means for this command: the kernel doesn't say which it was.
func (a *attempt) explain(f *failed, path string) (int, error) {
	errno := syscall.Errno(f.Errno)
	as := "the agent's user"
	if a.user != nil {
		as = "user " + a.user.name
	}
	switch errno {
	case syscall.ENOENT:
		return exitNotFound, fmt.Errorf("command %s: its interpreter (the #! line, or the dynamic loader) doesn't exist", path)
	case syscall.ENOEXEC:
		return exitNotExecutable, fmt.Errorf("command %s is neither a binary for this machine nor a script with a #! line", path)
	case syscall.EACCES:
		return exitNotExecutable, fmt.Errorf("command %s: permission denied for %s; check the file, its directories, mount option noexec, and that %s may pass to %s",
			path, as, as, a.dir.path)
	case syscall.E2BIG:
		return exitNotExecutable, fmt.Errorf("command %s: arguments and environment are too large (%d bytes of env)", path, len(strings.Join(a.spec.Env, " ")))
	case syscall.EAGAIN, syscall.ENOMEM:
		return exitNotExecutable, fmt.Errorf("command %s: no more processes or memory (%w)", path, errno)
	case 0:
		return exitNotExecutable, fmt.Errorf("command %s: %s", path, f.Error)
	default:
		return exitNotExecutable, fmt.Errorf("command %s: %w", path, errno)
	}
}
