// Package leasekeeper keeps one lease for one attempt, or says exactly when and why it can't be
// trusted any more.
//
// # States
//
//	           first heartbeat answered            attempt returned
//	offered ────────────────────────────► kept ──────────────────────► over
//	   │ lease_lost, not_found,             │
//	   │ or the context ended               ├─ the server asked ─► ended: Cancelled    ─┐ heartbeats go on,
//	   ▼                                    ├─ window closing ───► ended: LeaseExpired ─┤ so that the report
//	never started                           ├─ caller's context ─► ended: its cause    ─┘ isn't reaped
//	                                        └─ lease_lost ───────► ended: LeaseLost: heartbeats stop
//
// "Ended" means that the attempt's context has ended with that cause. The first cause stays.
//
// # The promise for exclusive jobs
//
// At no moment does a process of an exclusive attempt live while the server may lease the job to
// someone else. The argument: a server that answered a heartbeat had renewed the lease when the
// request arrived, and it arrived after it was sent. So the lease lives at least until
//
//	sent + TTL
//
// on any clock that runs at the same rate, whatever the two clocks show. The keeper counts that
// from the last *answered* heartbeat; one that got no answer may never have arrived, and counts for
// nothing. From the end of the window it goes backwards:
//
//	sent                                                          sent + TTL
//	 ├──────────── budget ───────────┬──── grace ────┬── kill ──┬─ margin ─┤
//	                                 │ context ends  │ SIGKILL  │ all gone
//
// The grace is capped at TTL/2. Heartbeats are held so briefly that in good times an answered one
// is never older than half the budget (see hold).
//
// Every other end of an exclusive attempt (draining, its timeout) comes before that moment, or the
// window would have ended it first; GraceFor caps its grace alike, so it is gone in time too. A cancelled
// job is not leased again, so its grace is what the server asked for.
//
// Assumed: the agent's clock and the server's run at the same rate to within the margin (a twentieth of the
// TTL: quartz is a thousand times better); a renewal never brings the end of a lease forward; SIGKILL
// ends a process within the kill time (one that is stuck in the kernel outlives every promise, and the
// runner says so).
//
// Not assumed: that wall clocks agree, that the network tells of its failures, that the machine never
// sleeps. The clock is CLOCK_BOOTTIME, which counts suspend; Go's timers do not, so the window is looked
// at least once a second. A machine that slept through the end of a lease may therefore give its
// processes up to that second after it wakes. Nothing on that machine could do better.
//
// # Jobs that are not exclusive
//
// They go on through any outage: while the server is away nobody can lease the job, and after a
// partition the first answered heartbeat settles whose it is: lease_lost ends the attempt. Two
// attempts may overlap meanwhile; docs/leases.md has the table. One exception: an agent that was told
// that it is revoked ends the attempt when the window closes, exclusive or not.
package leasekeeper
