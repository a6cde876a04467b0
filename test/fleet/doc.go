// Package fleet simulates agents by the thousand in one process, each true to the protocol: it links with a key pair of its own, polls,
// accepts what it is offered, keeps the lease with held heartbeats, ships the log and completes, and it comes back from an outage with
// the back-off that agents have. What a job does is to wait and to print; nothing is executed.
//
// It is for those who size a server, and for the tests and benchmarks that do. An idle agent costs one goroutine, one connection and
// net/http's two goroutines for that; connections come from shared transports.
package fleet
