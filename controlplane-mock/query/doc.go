// Package query is the broker of questions that a person waits for: Ask brings one, Lease hands it
// to an agent's worker, Answer brings the result back to the one who asks.
//
// Nothing here is written anywhere. A query lives in this process's memory for exactly as long as its
// asker waits; a restart loses it, and its worker is then told that it is gone. There is no store, no
// retry and no log line with content.
//
// # States
//
//	           Lease                 Answer (token fits)
//	waiting ──────────► leased ─────────────────────────► answered
//	   │ ▲                │ │
//	   │ └────────────────┘ │     Return: the batch could not be delivered
//	   └──────── ended ◄────┘     its deadline, or the asker went away
//
// One mutex guards all of it, and a query leaves waiting or leased exactly once: whoever takes it out of
// the tables is the one who sends the asker its one result. So an answer that races with the deadline,
// or a withdrawal with a lease, has one winner, and the loser is told gone.
//
// Bounded: the queue of each type, a batch, the life of a query, the askers at once, and the table of who is
// present (agents × types × connectors, cleared of those that stopped polling).
package query
