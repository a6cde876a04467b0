package redka

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"sync"

	redkadb "github.com/nalgeon/redka"
	_ "modernc.org/sqlite" // the pure-Go driver, registered as "sqlite"

	"agentd/controlplane-mock/store"
)

const driverName = "sqlite"

const (
	// readers is how many connections answer reads beside the one that writes: enough that a slow
	// listing doesn't hold up a lookup, few because each has its own page cache.
	readers = 4
	// busyTimeout covers what SQLite locks for a moment although there is one writer: recovery, and
	// the last connection's checkpoint of another handle that is just being closed.
	busyTimeout = 5000 // ms
	pageSize    = 4096 // bytes: larger ones made neither bodies nor documents faster (measured)
)

// database is one file: a connection that writes and a few that read. Opened again after a
// fault, so use it through handles.
type database struct {
	path       string
	checkpoint int // bytes of WAL after which SQLite moves them to the file

	mu     sync.RWMutex // guards the handles; held for reading while one is used
	w, r   *redkadb.DB
	rw, ro *sql.DB
	gone   bool // closed for good, as against for the moment
}

// stop closes the database for good.
func (d *database) stop() error {
	err := d.close()
	d.mu.Lock()
	d.gone = true
	d.mu.Unlock()
	return err
}

// away is why there are no handles. Called with mu held.
func (d *database) away() error {
	if d.gone {
		return store.ErrStopped
	}
	return errAway
}

// dsn sets every pragma in the data source name: the driver applies these to each connection it
// makes, where a PRAGMA statement would reach just one of the pool.
func (d *database) dsn(readOnly bool) string {
	q := url.Values{}
	pragma := func(name, value string) { q.Add("_pragma", name+"("+value+")") }
	pragma("busy_timeout", strconv.Itoa(busyTimeout)) // first: the ones below may have to wait
	if readOnly {
		q.Set("mode", "ro")
	} else {
		q.Set("_txlock", "immediate")
		pragma("page_size", strconv.Itoa(pageSize))
		pragma("journal_mode", "wal")
		pragma("wal_autocheckpoint", strconv.Itoa(d.checkpoint/pageSize))
		pragma("journal_size_limit", strconv.Itoa(2*d.checkpoint))
	}
	pragma("synchronous", "full")
	pragma("foreign_keys", "on") // deleting a key deletes its value by cascade
	pragma("temp_store", "memory")
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: d.path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

func (d *database) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Made here, so that it never is readable by others; SQLite gives -wal and -shm the same mode.
	f, err := os.OpenFile(d.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	rw, err := sql.Open(driverName, d.dsn(false))
	if err != nil {
		return err
	}
	if err := prepare(rw); err != nil {
		return fmt.Errorf("%s: %w", d.path, joinClose(err, rw))
	}
	ro, err := sql.Open(driverName, d.dsn(true))
	if err != nil {
		return joinClose(err, rw)
	}
	opts := &redkadb.Options{DriverName: driverName, Pragma: map[string]string{}}
	w, err := redkadb.OpenReadDB(rw, opts)
	if err != nil {
		return joinClose(err, rw, ro)
	}
	r, err := redkadb.OpenReadDB(ro, opts)
	if err != nil {
		return joinClose(err, rw, ro)
	}
	// After OpenReadDB, which sets its own numbers.
	rw.SetMaxOpenConns(1)
	rw.SetMaxIdleConns(1)
	ro.SetMaxOpenConns(readers)
	ro.SetMaxIdleConns(readers)
	d.w, d.r, d.rw, d.ro = w, r, rw, ro
	return nil
}

func (d *database) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rw == nil {
		return nil
	}
	// Readers first: the last connection to go moves the WAL into the file, and must be able to write.
	err := d.ro.Close()
	if werr := d.rw.Close(); err == nil {
		err = werr
	}
	d.w, d.r, d.rw, d.ro = nil, nil, nil, nil
	return err
}

// view calls f in a read transaction on the last committed state.
func (d *database) view(ctx context.Context, f func(tx *redkadb.Tx) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.r == nil {
		return d.away()
	}
	return d.r.ViewContext(ctx, f)
}

// update calls f in the one write transaction, and commits it durably unless f fails.
func (d *database) update(ctx context.Context, f func(tx *redkadb.Tx) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.w == nil {
		return d.away()
	}
	return d.w.UpdateContext(ctx, f)
}
