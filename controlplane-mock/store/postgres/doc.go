// Package postgres is the Store for control planes of many instances: all of them on one
// PostgreSQL, none with state of its own.
//
// Every change is one transaction that holds the row it changes (SELECT … FOR UPDATE), lets package
// rules decide, and writes the result; so changes of one job are serial whatever instance makes them.
// Leasing passes over rows that others hold (SKIP LOCKED), so instances don't queue behind each other for the
// oldest job. Renewing an accepted lease is one UPDATE with the claim in its WHERE.
//
// All instants are the database's (clock_timestamp()): instances may disagree about the time. What an instance
// measures itself is only how long it, or the database, was away: it doesn't reap before a full TTL
// has passed since. Commits are synchronous, whatever the database's default is.
//
// Changes are told by NOTIFY in the transaction that makes them, and heard by the one connection that Watch
// holds. After that connection was lost its function is told to look at everything again.
package postgres
