// Package stack runs the two real binaries, a reference control plane and an agent, on loopback in
// a scratch directory, for the demo, the benchmarks and the slow suites. It ends what it started, by pid.
package stack
