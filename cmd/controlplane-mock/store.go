package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
	"agentd/controlplane-mock/store/redka"
)

// openStore opens what --store names, and settles where the admin token is when nothing says so.
func openStore(ctx context.Context, o *serveOptions, log *zap.Logger) (store.Store, error) {
	kind, rest, ok := strings.Cut(o.store, ":")
	switch {
	case o.store == "":
		return nil, usage("--store is required: redka:DIR, or postgres://USER@HOST/DATABASE")
	case ok && kind == "redka" && rest != "":
		if o.keepLogs > 0 {
			return nil, usage("--keep-logs: a redka store keeps all logs; only a PostgreSQL store drops old ones")
		}
		if o.tokenFile == "" {
			o.tokenFile = filepath.Join(rest, "admin-token")
		}
		st, err := redka.Open(rest)
		if err != nil {
			return nil, storeError(rest, err)
		}
		return st, nil
	case ok && (kind == "postgres" || kind == "postgresql"):
		if o.tokenFile == "" {
			return nil, usage("--admin-token-file is required with a PostgreSQL store: all its servers must know the same token")
		}
		st, err := postgres.Open(ctx, postgres.Config{URL: o.store, KeepLogs: time.Duration(o.keepLogs), Logger: log})
		if err != nil {
			return nil, databaseError(err)
		}
		return st, nil
	}
	// The value may hold a password: it isn't repeated.
	return nil, usage("--store: want redka:DIR, or postgres://USER@HOST/DATABASE")
}

// databaseError says what kind of trouble a database is in. Its URL may hold a password: it isn't repeated.
func databaseError(err error) error {
	wrapped := fmt.Errorf("--store postgres://…: %w", err)
	if _, bad := errors.AsType[*pgconn.ParseConfigError](err); bad {
		return &exitError{exitConfig, wrapped}
	}
	const badAuthorization = "28" // a class of SQLSTATEs
	if pg, said := errors.AsType[*pgconn.PgError](err); said && strings.HasPrefix(pg.Code, badAuthorization) {
		return &exitError{exitNotPermitted, wrapped}
	}
	if _, away := errors.AsType[*pgconn.ConnectError](err); away {
		return &exitError{exitUnreachable, wrapped}
	}
	return wrapped
}

// storeError says what to do about a directory that can't be used.
func storeError(dir string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return &exitError{exitNotPermitted, fmt.Errorf("--store redka:%s: %w; the directory must be writable by this user", dir, err)}
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return &exitError{exitConfig, fmt.Errorf("--store redka:%s: %w; name a directory", dir, err)}
	case errors.Is(err, syscall.ENOSPC):
		return &exitError{exitLater, fmt.Errorf("--store redka:%s: %w; free some space", dir, err)}
	}
	return fmt.Errorf("--store redka:%s: %w", dir, err)
}
