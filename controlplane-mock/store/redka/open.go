package redka

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
)

var _ store.Store = (*Store)(nil)

const (
	metaSeq      = "meta/seq"
	metaServerID = "meta/server-id"
	metaSecret   = "meta/secret/"
)

// Checkpoints copy the WAL into the file and keep writers waiting meanwhile. Small documents
// have it done often and in no time; bodies less often, since a larger WAL gathers more writes to each page.
const (
	stateCheckpoint = 4 << 20
	logsCheckpoint  = 16 << 20
)

// Store keeps everything in one directory. See the package comment.
type Store struct {
	dir             string
	lock            *os.File
	stateDB, logsDB database
	state, logs     committer
	watchers        watchers

	over  overlay // owned by the leader of state
	tails tails

	segments segments // owned by the leader of logs

	mu        sync.Mutex
	closed    bool
	mem       memory              // guarded by mu, see there
	busy      map[string]struct{} // guarded by mu: jobs that the group under way changes
	spareFrom time.Time           // guarded by mu: no lease ends within a TTL from then
	restUntil time.Time           // guarded by mu: no lease ends before
}

// Open opens the store in dir, making what doesn't exist. One process at a time has it: another is
// refused with a message that names this one. It starts no goroutine but the driver's.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("redka: %w", err)
	}
	// Hashes of credentials, and whatever jobs print: for nobody else, however the directory was made.
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
		return nil, fmt.Errorf("redka: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, lock: lock, busy: map[string]struct{}{}, tails: tails{shown: map[logKey]int64{}}}
	s.stateDB = database{path: filepath.Join(dir, "state.db"), checkpoint: stateCheckpoint}
	s.logsDB = database{path: filepath.Join(dir, "logs.db"), checkpoint: logsCheckpoint}
	s.segments = segments{dir: filepath.Join(dir, "bodies")}
	s.state = committer{db: &s.stateDB, begin: s.begin, commit: s.commit, abort: s.abort, reload: s.load}
	s.logs = committer{db: &s.logsDB, begin: s.beginLogs, flush: s.segments.sync, commit: s.commitLogs, abort: s.abortLogs, reload: s.reloadLogs}
	for _, open := range []func() error{s.stateDB.open, s.logsDB.open, s.segments.open, func() error { return syncDir(dir) }, s.load} {
		if err := open(); err != nil {
			return nil, errors.Join(fmt.Errorf("redka: %w", err), s.logsDB.close(), s.stateDB.close(), lock.Close())
		}
	}
	return s, nil
}

// lockDir takes the directory for this process until the file is closed or the process dies.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("redka: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 256))
		_ = f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("redka: flock %s: %w", dir, err)
		}
		return nil, fmt.Errorf("redka: %s is in use by %s: stop it, or give this control plane another directory", dir,
			strings.TrimSpace(string(holder)))
	}
	exe, _ := os.Executable()
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "process %d (%s)\n", os.Getpid(), filepath.Base(exe))
	}
	if err != nil {
		return nil, fmt.Errorf("redka: %w", errors.Join(err, f.Close()))
	}
	return f, nil
}

// syncDir makes the names of new files durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func joinClose(err error, closers ...io.Closer) error {
	for _, c := range closers {
		err = errors.Join(err, c.Close())
	}
	return err
}

// load reads memory from state.db. What is known of leases stays: after a fault they are spared one TTL, as
// after a start.
func (s *Store) load() error {
	m := newMemory()
	now := time.Now()
	ctx := context.Background()
	err := s.stateDB.view(ctx, func(tx *redkadb.Tx) error {
		if _, err := get(tx, metaSeq, &m.seq); err != nil {
			return err
		}
		if err := loadAll(tx, setTokens, tokenKeyOf, func(id string, e *enrolment) error {
			e.wake(now)
			return addSum(m.tokens, id, e)
		}); err != nil {
			return err
		}
		if err := loadAll(tx, setNonces, nonceKeyOf, func(id string, n *nonce) error {
			n.wake(now)
			var sum store.Sum
			if err := sum.UnmarshalText([]byte(id)); err != nil {
				return err
			}
			m.nonces[sum] = n
			m.nonceAge = append(m.nonceAge, sum)
			return nil
		}); err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	var agents []*agent
	var jobs []*job
	err = s.stateDB.view(ctx, func(tx *redkadb.Tx) error {
		err := loadAll(tx, setAgents, agentKey, func(_ string, a *agent) error {
			for i := range a.Keys {
				a.Keys[i].wake(now)
			}
			agents = append(agents, a)
			return nil
		})
		if err != nil {
			return err
		}
		for after := int64(0); ; {
			page, err := readPage(tx, setLive, after)
			if err != nil || len(page) == 0 {
				return err
			}
			jobs = append(jobs, page...)
			after = page[len(page)-1].seq
		}
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.leases != nil {
		m.leases, m.seen = s.mem.leases, s.mem.seen
	}
	s.mem, s.spareFrom = m, now
	for _, a := range agents {
		s.publishAgent(a)
	}
	for _, j := range jobs {
		s.publishJob(j.spec.ID, j)
	}
	for id := range m.leases {
		if m.jobs[id] == nil {
			delete(m.leases, id)
		}
	}
	return nil
}

func tokenKeyOf(sum string) string { return "token/" + sum }
func nonceKeyOf(sum string) string { return "nonce/" + sum }

func addSum[V any](m map[store.Sum]V, id string, v V) error {
	var sum store.Sum
	if err := sum.UnmarshalText([]byte(id)); err != nil {
		return err
	}
	m[sum] = v
	return nil
}

// loadAll calls f for each member of a set, in order, with the document behind it.
func loadAll[T any](tx *redkadb.Tx, set string, key func(id string) string, f func(id string, v *T) error) error {
	ids, err := tx.ZSet().RangeWith(set).ByScore(0, maxScore).Run()
	if err != nil {
		return err
	}
	const page = 500
	for len(ids) > 0 {
		part := ids[:min(len(ids), page)]
		ids = ids[len(part):]
		keys := make([]string, len(part))
		for i := range part {
			keys[i] = key(part[i].Elem.String())
		}
		values, err := tx.Str().GetMany(keys...)
		if err != nil {
			return err
		}
		for i := range part {
			v := new(T)
			if err := json.Unmarshal(values[keys[i]], v); err != nil {
				return fmt.Errorf("%s: %w", keys[i], err)
			}
			if err := f(part[i].Elem.String(), v); err != nil {
				return err
			}
		}
	}
	return nil
}

// ServerID names the control plane.
func (s *Store) ServerID(ctx context.Context) (string, error) {
	raw, err := s.once(ctx, metaServerID, func() []byte {
		return []byte("cp_" + hex.EncodeToString(random(12)))
	})
	return string(raw), err
}

// Secret returns the named secret, made at first use.
func (s *Store) Secret(ctx context.Context, name string) ([]byte, error) {
	return s.once(ctx, metaSecret+name, func() []byte { return random(32) })
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// once reads key, or sets it to what first answers.
func (s *Store) once(ctx context.Context, key string, first func() []byte) ([]byte, error) {
	var out []byte
	err := s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
		v, err := tx.Str().Get(key)
		if err == nil {
			out = v.Bytes()
			return nil
		}
		if !errors.Is(err, redkadb.ErrNotFound) {
			return broken(err)
		}
		out = first()
		return broken(tx.Str().Set(key, out))
	})
	return out, err
}

// Ping answers whether both databases can serve. One that failed is opened again.
func (s *Store) Ping(ctx context.Context) error {
	nothing := func(tx *redkadb.Tx) error {
		_, err := tx.Key().Exists(metaServerID)
		return broken(err)
	}
	if err := s.state.apply(ctx, 0, nothing); err != nil {
		return err
	}
	return s.logs.apply(ctx, 0, nothing)
}

// Close waits for changes under way, writes when agents were last seen, and lets the directory go.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.logs.stop()
	err := s.saveSeen()
	s.state.stop()
	return errors.Join(err, s.segments.drop(), s.logsDB.stop(), s.stateDB.stop(), s.lock.Close())
}

func (s *Store) saveSeen() error {
	return s.state.apply(context.Background(), 0, func(tx *redkadb.Tx) error {
		for id, a := range s.mem.agents {
			seen, ok := s.lastSeen(id)
			if !ok || seen.Equal(a.LastSeen) {
				continue
			}
			c := *a
			if err := s.putAgent(tx, &c); err != nil {
				return err
			}
		}
		return nil
	})
}
