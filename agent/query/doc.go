// Package query answers queries: it asks the control plane for them, hands each to a handler with its
// deadline, and sends the page back. A query is an answer that a person waits for; it is written nowhere.
//
// What that means here: no query and no page is logged, counted by name, spooled or journalled; an error
// of a handler becomes a code, never a text; what a connector writes to stderr is counted and thrown
// away, since nobody can say what is in it; the memory of a query and of its page is cleared once the answer
// was sent, as far as it is ours (encoders and the kernel's sockets have copies; docs/security.md says what is left).
//
// A free place in Config.Concurrency is the only demand: a flood of queries is shed by not asking for
// them, where the broker answers busy. An answer that comes after its query's deadline isn't sent.
package query
