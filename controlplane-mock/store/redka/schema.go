package redka

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"

	redkadb "github.com/nalgeon/redka"
)

// redka makes its tables only in Open and OpenDB, and both start a goroutine that deletes expired
// keys once a minute and never ends, not even after Close. We use no expiring keys and leave no
// goroutine behind, so we open with OpenReadDB, which starts none (in spite of its name it writes
// just as well), and need the schema by other means: we let OpenDB run against a connection that
// records what it is asked to execute and refuses it, and so get the text that belongs to the
// very version of redka that is linked in.

var errRecorded = errors.New("recorded")

// prepare makes redka's tables in a new file, all or none.
func prepare(db *sql.DB) error {
	ctx := context.Background() // opening isn't cancelled half-way
	create, err := schema()
	if err != nil {
		return err
	}
	var version int
	if err := db.QueryRowContext(ctx, "pragma user_version").Scan(&version); err != nil {
		return err
	}
	if version != 0 {
		return nil // redka sets it with the tables
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, create); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// schema is the SQL that makes redka's tables; it is safe to repeat.
func schema() (string, error) {
	rec := &recorder{}
	db := sql.OpenDB(rec)
	defer db.Close() //nolint:errcheck // there is nothing behind it
	opts := &redkadb.Options{DriverName: driverName, Pragma: map[string]string{}}
	if _, err := redkadb.OpenDB(db, db, opts); !errors.Is(err, errRecorded) {
		return "", errors.New("redka: its schema could not be recorded: OpenDB did not execute it")
	}
	if !strings.Contains(rec.query, "create table if not exists") {
		return "", errors.New("redka: its schema could not be recorded: OpenDB executed something else")
	}
	return rec.query, nil
}

// recorder is a connector, driver and connection that keeps the first statement and fails it.
type recorder struct{ query string }

func (r *recorder) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r *recorder) Driver() driver.Driver                        { return r }
func (r *recorder) Open(string) (driver.Conn, error)             { return r, nil }
func (r *recorder) Close() error                                 { return nil }
func (r *recorder) Prepare(string) (driver.Stmt, error)          { return nil, errRecorded }
func (r *recorder) Begin() (driver.Tx, error)                    { return nil, errRecorded }

func (r *recorder) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	r.query = query
	return nil, errRecorded
}
