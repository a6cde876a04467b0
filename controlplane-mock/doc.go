// Package controlplane is the reference control plane: the server's side of the agent protocol as an
// http.Handler over a store.Store, with the admin side that people and programs use.
//
// # The promise
//
// The handlers decide who may ask and whether a request is well formed; every change of state is one
// compare-and-set in the store. Nothing that must outlive a request is kept here, so any number of
// servers may share a store, and a server that dies at any point loses only the holds of its clients.
//
//   - A job is leased to one poll. Polls only look; the store settles who gets it.
//   - A log batch is acknowledged after the store has it durably, and is stored as it came: it is decoded
//     here to be checked (digest, encoding, every record, count), never to be rewritten, except
//     where it overlaps with what is stored.
//   - A hold never misses its cause: each subscribes to events first and looks at the store after that, so
//     a change is either seen by the look or announced to the subscription.
//
// # Holds
//
// Polls, held heartbeats and followed logs wait for store events. One watch loop (Run) receives them:
//
//	store.Watch ─► hub ─┬─ a pending job ─► the first waiting poll that matches; it passes the
//	                    │                   wake on if it left with another job or its client went away
//	                    ├─ a job changed ─► that job's heartbeats and followers
//	                    ├─ a log grew ────► that attempt's followers
//	                    └─ resync ────────► everyone looks again, spread over a short while
//
// Without Run nothing wakes, and holds last their full wait: correct, but slow.
//
// # What is not defended
//
// The server trusts its store and whoever holds an admin token. Addresses are those of the connection:
// behind a proxy all clients share one, and the limits for failures by address are theirs together.
package controlplane
