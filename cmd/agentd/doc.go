// Command agentd is the daemon: it asks a control plane for jobs, runs each under a lease, ships every
// line that it prints, and tells the outcome.
//
// This package reads files, flags and environment, and wires; it decides nothing.
package main
