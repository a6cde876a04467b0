// Command bench measures what the README claims: latencies, CPU, memory and disk of the real binaries,
// each beside something known that ran in the same minute on the same machine, so that the ratio
// means something where machines are shared and noisy. `make bench` builds and runs it.
//
// Goals are printed, not enforced: a number that missed its goal says so and the run goes on.
package main
