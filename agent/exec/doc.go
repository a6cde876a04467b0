// Package exec runs one command as one attempt of a job, and promises that nothing which the command
// started outlives the attempt: background processes, double forks and new sessions included.
package exec
