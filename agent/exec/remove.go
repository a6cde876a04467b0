package exec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// maxDepth is how many directories are open at once while one is removed; deeper ones are first moved to the top. So neither
// a job's ten thousand nested directories nor `ulimit -n 256` stop the removal.
const maxDepth = 16

var errRemoveTime = errors.New("not all removed in time")

// remover removes one work directory. It goes by descriptors and refuses to cross into another mount: a job that left
// a bind mount of /home in its directory must not cost the host its /home. (os.Root stops links, not mounts.)
type remover struct {
	top      int // the directory that is being removed
	moved    int
	deadline time.Time
}

// removeTree removes name below dir and everything in it; what isn't there is removed already.
func removeTree(dir, name string, deadline time.Time) error {
	parent, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	defer unix.Close(parent) //nolint:errcheck // nothing was written
	top, err := openDir(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	r := remover{top: top, deadline: deadline}
	err = r.empty(top, 0)
	_ = unix.Close(top)
	if err == nil {
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// openDir opens a directory that is really there: no link, no mount. One that its owner closed to himself is opened up first.
func openDir(parent int, name string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	}
	fd, err := unix.Openat2(parent, name, &how)
	if errors.Is(err, unix.EACCES) {
		locked := how
		locked.Flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if p, e := unix.Openat2(parent, name, &locked); e == nil {
			_ = os.Chmod("/proc/self/fd/"+strconv.Itoa(p), 0o700) //nolint:gosec // a directory
			_ = unix.Close(p)
			fd, err = unix.Openat2(parent, name, &how)
		}
	}
	if err != nil {
		return -1, err
	}
	_ = unix.Fchmod(fd, 0o700) // without w and x nothing in it can be removed; as root it doesn't matter
	return fd, nil
}

func (r *remover) empty(fd, depth int) error {
	for {
		names, err := r.list(fd)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if time.Now().After(r.deadline) {
				return errRemoveTime
			}
			if err := r.one(fd, name, depth); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
}

// list returns some of the names in a directory, from its start.
func (r *remover) list(fd int) ([]string, error) {
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(again), "work directory")
	defer f.Close()
	const some = 1024
	names, err := f.Readdirnames(some)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return names, nil
}

func (r *remover) one(fd int, name string, depth int) error {
	err := unix.Unlinkat(fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) { // EPERM: a directory, says POSIX; or immutable
		return err
	}
	child, openErr := openDir(fd, name)
	if errors.Is(openErr, unix.ENOTDIR) {
		return err
	}
	if openErr != nil {
		return openErr
	}
	if depth >= maxDepth {
		_ = unix.Close(child)
		r.moved++
		return unix.Renameat(fd, name, r.top, ".deep-"+strconv.Itoa(r.moved))
	}
	err = r.empty(child, depth+1)
	_ = unix.Close(child)
	if err != nil {
		return err
	}
	return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
}
