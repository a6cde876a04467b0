package exec

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Names below the work root. A sweep removes what has attemptPrefix; kept ones are the operator's.
const (
	attemptPrefix = "a-"
	keptPrefix    = "kept-"
	resultFile    = "result.json"
)

// removeWait bounds the removal of one work directory at an attempt's end: some hundred thousand files. What is left
// is removed later, so that a slow disk holds up no completion.
const removeWait = 3 * time.Second

// workDir is one attempt's directory. It is reached through descriptors, never by a path that the job could have bent.
type workDir struct {
	name string // below the work root; unique, so that the path marks the attempt's processes
	path string
	root *os.Root // the directory itself
}

func (d *workDir) resultPath() string { return filepath.Join(d.path, resultFile) }

func (d *workDir) close() {
	if d.root != nil {
		_ = d.root.Close() // nothing was written through it
	}
}

// uniqueName names an attempt's directory and cgroup.
func uniqueName(jobID string, attempt int64) string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	return fmt.Sprintf("%s-%d-%s", jobID, attempt, hex.EncodeToString(random[:]))
}

// validID: the protocol's ids are harmless in a path; whatever is not such an id must not become one.
func validID(id string) bool {
	return id != "" && len(id) <= 64 && strings.IndexFunc(id, func(c rune) bool {
		return c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) < 0
}

func (r *Runner) makeWorkDir(name string, owner *account) (*workDir, error) {
	top, err := os.OpenRoot(r.cfg.WorkRoot)
	if err != nil {
		return nil, err
	}
	defer top.Close() //nolint:errcheck // nothing was written through it
	d := &workDir{name: attemptPrefix + name}
	d.path = filepath.Join(r.cfg.WorkRoot, d.name)
	if err := top.Mkdir(d.name, 0o700); err != nil {
		return nil, err
	}
	if owner != nil {
		if err := top.Lchown(d.name, int(owner.cred.UID), int(owner.cred.GID)); err != nil {
			return nil, err
		}
	}
	if d.root, err = top.OpenRoot(d.name); err != nil {
		return nil, err
	}
	return d, nil
}

// result reads what the job left in AGENTD_RESULT; nil when it left nothing. Nothing of the job is alive any more,
// so what was looked at is what is opened.
func (d *workDir) result() (json.RawMessage, error) {
	before, err := d.root.Lstat(resultFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("AGENTD_RESULT: %w", err)
	}
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("AGENTD_RESULT is not a regular file (%s)", before.Mode().Type())
	}
	// A job that runs as somebody else could have linked a file here that only the agent may read.
	if st, ok := before.Sys().(*syscall.Stat_t); ok && st.Nlink != 1 {
		return nil, errors.New("AGENTD_RESULT is a hard link")
	}
	if before.Size() > MaxResult {
		return nil, fmt.Errorf("AGENTD_RESULT is too large: %d bytes of at most %d", before.Size(), MaxResult)
	}
	f, err := d.root.OpenFile(resultFile, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("AGENTD_RESULT: %w", err)
	}
	defer f.Close()
	if after, err := f.Stat(); err != nil || !os.SameFile(before, after) {
		return nil, errors.New("AGENTD_RESULT changed while it was read")
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxResult+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("AGENTD_RESULT: %w", err)
	case len(data) > MaxResult:
		return nil, fmt.Errorf("AGENTD_RESULT is too large: more than %d bytes", MaxResult)
	case len(strings.TrimSpace(string(data))) == 0:
		return nil, nil
	case !json.Valid(data):
		return nil, errors.New("AGENTD_RESULT is not valid JSON")
	}
	return data, nil
}

// keep takes the directory out of the sweep's reach and says where it is.
func (r *Runner) keep(d *workDir) (string, error) {
	top, err := os.OpenRoot(r.cfg.WorkRoot)
	if err != nil {
		return "", err
	}
	defer top.Close() //nolint:errcheck // nothing was written through it
	name := keptPrefix + strings.TrimPrefix(d.name, attemptPrefix)
	if err := top.Rename(d.name, name); err != nil {
		return "", err
	}
	return filepath.Join(r.cfg.WorkRoot, name), nil
}
