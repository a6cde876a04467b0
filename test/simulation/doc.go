// Command simulation is a queueing model of the control plane with more agents than one machine can run: a clock that jumps from
// event to event, and beside it the parts that wait for each other, as they are built (held heartbeats and polls, renewals that
// are gathered, connections of the database, commits that share a sync, back-off, reaper). What each step costs was measured,
// and is a flag. The same seed gives the same figures.
//
//	go run ./test/simulation --agents 100000 --instances 6
//
// What it leaves out: the network's own time, memory and the garbage collector, the kernel's scheduling within a machine (jobs
// for its cores are served in the order of their arrival), exclusive jobs, cancels, queries, and log volume beyond small
// batches. TestAgainstTheRealThing says how far off it is where both can be run.
package main
