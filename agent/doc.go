// Package agent asks a control plane for jobs, runs each under a lease, ships what it prints, and
// tells the outcome, which arrives once, whatever dies in between.
//
//	a, err := agent.New(cfg)
//	a.Handle("extract", agent.Command{Command: []string{"/opt/etl/extract"}})
//	err = a.Run(ctx)
//
// # The way of a job
//
//	poll ─► offer ─► accept: first heartbeat answered ─► journal ─► handler ─► journal: outcome ─► completion ─► forgotten
//	          │          │                                  │                      │ killed here: the outcome
//	          │          │ lease_lost: nobody's job         │ killed here: reported │ is in the journal, and is
//	          │          ▼                                  ▼ lost at the next start ▼ reported at the next start
//	          └─ draining: released            started at all? if not: released
//
// One poll is under way at a time, and only while a slot is free: demand is what could start now. An
// offer is handed to its attempt before the next poll is sent, so one poll fills any number of
// slots, one round trip each. A poll whose answer was lost is repeated under its own id, and gets the same offer.
//
// A slot is taken from the offer until the job's processes have ended. The report of the outcome
// needs none, so a completion that the server can't take yet keeps no other job waiting; the journal's slots bound how many there can be.
//
// # Ending
//
// Two contexts: one for taking work, one for doing it. When Run's context ends no more is taken, and
// offers that still arrive are released; jobs go on up to Drain.Timeout under their leases, then get their stop
// signal and grace; then completions and logs are delivered up to Drain.Flush; the rest is on disk, synced. Hurry skips
// the waits, never the disk.
package agent
