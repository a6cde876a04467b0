// Command controlplane-mock serves the reference control plane, and is how people use one: they
// submit jobs, follow their logs and manage agents with it. docs/control-plane.md tells how.
//
// Output for people goes to a terminal or a file alike, without colour and without anything that
// moves; --json is for programs. What a command says about itself goes to standard error, so that
// standard output is the answer and nothing else.
package main
