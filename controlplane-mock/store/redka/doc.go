// Package redka is the embedded Store: redka (Redis-like structures over SQLite, pure Go) in
// a data directory that exactly one process uses.
//
// # On disk
//
//	LOCK       held with flock while the store is open; names the process that has it
//	state.db   jobs, agents, tokens, nonces: small documents that change
//	logs.db    log batches: where each is, and the body itself if it is small
//	bodies/    segments: large bodies, one after the other, only ever added to
//
// The two .db files are redka databases in WAL mode with synchronous=full, so what a method has answered
// survives a power cut. They are two, because SQLite has one writer per file: in the same
// file every lease would wait for somebody's log to be written and checkpointed. Nothing needs both in one
// transaction: a batch belongs to an attempt, which is in state.db before its token is given out, and
// never goes away. Bodies over 64 KiB are in files of their own, because SQLite writes everything
// twice and page by page (see inline for the measurements); a segment is synced before logs.db commits
// where the body is, so what the database knows of is whole, and what it doesn't is nobody's.
//
// Keys of state.db (values are JSON unless said otherwise):
//
//	meta/server-id, meta/secret/<name>, meta/seq   the id; 32 bytes; the last number given to a job or agent
//	job/<id>           what was submitted; never changes
//	state/<id>         rules.State
//	result/<id>/<n>    an attempt's result, as it came
//	idem/<key>         idempotency: job id and the sum of the submission
//	jobs, live         sorted sets of job ids by number: all of them, and those not settled
//	agent/<id>         an agent with its public key and API keys; agents: sorted set of ids by number
//	token/<sum>, nonce/<sum>   and the sorted sets tokens, nonces of their sums by wall-clock end
//
// Keys of logs.db:
//
//	body/<job>/<n>/<first>   a batch's body as it came, up to 64 KiB
//	index/<job>/<n>          sorted set of batches: score = first+count, element = batch header
//	next/<job>/<n>           the number after the last stored record
//
// # Why it is correct
//
// All changes of a database go through one committer: callers queue up, one of them (the leader)
// takes what is queued and carries it out in one transaction, one change after the other. So
// changes are serial, each sees those before it, and a compare-and-set is a plain if. A change
// first decides and then writes; deciding "no" writes nothing, so that one caller's error leaves the
// group's transaction sound. A fault of the database fails the whole group.
//
// What isn't settled is also held in memory, together with agents, keys, tokens and nonces. Memory
// is changed only after the commit, so nobody ever sees what a power cut could take back. After a
// failed commit nobody knows what is on disk: the handles are closed, the database is opened
// again, and memory is read anew.
//
// Leases' ends live in memory only, on the monotonic clock: renewing an accepted lease writes
// nothing, and no wall clock can end one early or late. After a start, and after the database was
// away, every live lease has one full TTL before Reap may end it. A renewal of a lease that some change
// in flight is about to end goes through the committer too, and so is decided after it: an
// answered renewal is never undone by a reaper that had looked before.
//
// API keys, enrolment tokens and nonces end on the monotonic clock as well. Over a restart their
// ends are carried by wall-clock stamps, together with the life they were given: a clock that was
// set back can't make one live longer than it was meant to from the restart on.
//
// Assumed: fdatasync does what it says, and the directory is on a file system with working locks
// (not NFS). Not assumed: that the process ends cleanly, ever.
package redka
