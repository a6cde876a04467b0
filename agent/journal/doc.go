// Package journal is the agent's reserved store: which attempts run, and which completions the server
// has not yet acknowledged. Its space is allocated before the first job is accepted, so an update never
// fails because logs filled the disk.
package journal
