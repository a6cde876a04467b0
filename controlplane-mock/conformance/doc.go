// Package conformance holds a server to docs/protocol.md from outside: by what it answers, over HTTP, and by nothing else.
//
// It is a table of named checks. Each quotes the sentences of the protocol that it is about, word for word, and a test
// holds the quotes to the document, so that neither can change without the other. Run puts the table to a Go test, Probe to
// whoever wants a report; `controlplane-mock conformance` prints one.
//
// A check uses agents, a job type and connectors of its own, so checks run side by side, on a server that does other work,
// too. All that they leave behind is settled jobs and revoked agents that are named "conformance"; the faults' checks,
// asked for with Target.Faults, disturb everybody. Times come from the server: the TTL that a link is told is the clock of every
// check, and a bound on how soon something must happen is so far off that only what waits for another cause passes it.
//
// What a client can't observe isn't covered: how credentials are stored, what is decided by whose clock, and what
// happens to the database. Restarts and several instances are covered where the Target offers them.
package conformance
