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
// openat2 would refuse mounts by itself, but systemd's RestrictSUIDSGID= answers ENOSYS to it.
func openDir(parent int, name string) (int, error) {
	const flags = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := openHere(parent, name, flags|unix.O_RDONLY)
	if errors.Is(err, unix.EACCES) {
		if p, e := openHere(parent, name, flags|unix.O_PATH); e == nil {
			_ = os.Chmod("/proc/self/fd/"+strconv.Itoa(p), 0o700) //nolint:gosec // a directory
			_ = unix.Close(p)
			fd, err = openHere(parent, name, flags|unix.O_RDONLY)
		}
	}
	if err != nil {
		return -1, err
	}
	_ = unix.Fchmod(fd, 0o700) // without w and x nothing in it can be removed; as root it doesn't matter
	return fd, nil
}

// openHere opens name, one component, and closes it again if it is on another mount than its parent. Two mounts
// of one file system have the same device number, so it is the mount's own id that tells.
func openHere(parent int, name string, flags int) (int, error) {
	fd, err := unix.Openat(parent, name, flags, 0)
	if err != nil {
		return -1, err
	}
	above, err := mountID(parent)
	if err == nil {
		var here uint64
		if here, err = mountID(fd); err == nil && here != above {
			err = unix.EXDEV // as openat2 would say
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func mountID(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 { // Linux before 5.8
		return 0, unix.EOPNOTSUPP
	}
	return st.Mnt_id, nil
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
