// Command demo shows agentd at work: it starts a reference control plane and an agent in a scratch
// directory, runs three real jobs, and checks what the control plane holds, byte for byte, against
// what the jobs wrote. `make demo` builds and runs it. It exits 0 only if everything held.
//
// The jobs are this same binary (demo job …): what one prints goes to the pipe that the agent reads
// and, as the truth to compare with, to files that the agent doesn't know of.
package main
