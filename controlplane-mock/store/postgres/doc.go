// Package postgres is the Store for control planes of many instances: all of them on one PostgreSQL, none with
// anything of its own that the others would miss.
//
// # The promise
//
// Every change is one statement, or one transaction where a second row must agree, and compares before it sets; so it
// holds whatever instance makes it. Nobody holds a row while it thinks:
//
//   - Leasing is one statement: the oldest pending job that matches and that nobody else is about to lease (SKIP LOCKED).
//   - A renewal, an accept too, is a row of one UPDATE for many leases, compared by job, attempt and agent. (The server has
//     checked the lease token, which is derived from job and attempt.)
//   - Everything else reads a job, lets package rules decide, and writes if the job's version is still the one it read; if
//     not, it decides anew. The reaper's write compares the end of the lease, too: a renewal that came first wins.
//   - A log batch moves its log's end from the batch's first number to its last, or is not stored.
//
// Commits of these are synchronous, whatever the database's default is. A statement that was sent is carried out whether or
// not its caller stays.
//
// # Cost
//
// What many agents do is gathered (batcher): renewals for up to renewGap, log batches while a commit is under way, stamps of
// when an agent was seen for a second. API keys are remembered while changes of agents are heard (keyCache), and whose attempt
// is whose for good. A renewal touches no index.
//
// # Events
//
// Changes are told after their commit: to this instance's watchers by a call, to the others by NOTIFY, gathered (tell says
// why not in the transaction). An instance that dies in between owes them; so every instance asks every slowPoll for jobs that
// became pending and agents that changed of late. When the one listening connection was lost, everyone looks again.
//
// # Time
//
// All instants are the database's (clock_timestamp()): instances may disagree about the time. If that clock is set, leases are
// spared for a TTL, and those that then end too late get their time from now. What an instance measures itself is only for how long it,
// or the database, was away; it doesn't reap before a full TTL has passed since.
//
// # Not defended
//
// A database that forgets what it committed (fsync=off, a failover to a replica that lagged) takes acknowledged logs and
// outcomes with it; the agents don't have them any more.
package postgres
