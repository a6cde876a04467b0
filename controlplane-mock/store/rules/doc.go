// Package rules is the state machine of jobs and attempts (protocol §3) as pure functions: no
// clock, no storage, no lock. Every store reads a State inside its own transaction, lets one
// of these functions change it, and writes it back; so two stores can't differ in what a
// completion or a cancel means, only in how they keep it.
//
//	job:      pending → offered → running → succeeded | failed | cancelled | timedOut
//	            ↑          │         │
//	            └──────────┴─────────┘  lapsed, released, or ended in something to retry
//	attempt:  offered → running → succeeded | failed | cancelled | timedOut | lost | released
//	             └→ lapsed | released | cancelled
//
// At most one attempt of a job is ever not over, and it is the last one: a new one is made
// only from pending, and a job becomes pending only when its last attempt has ended. That is
// why a reference to any other attempt, or to none, is a lost lease.
//
// A function that answers an error has changed nothing.
package rules
