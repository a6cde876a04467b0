// Package secrets holds the tests that search every file which agent and control plane write, both real
// processes, for what must not be there: secrets of jobs, queries and their answers.
package secrets
