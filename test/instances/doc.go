// Package instances tries three control planes on one PostgreSQL, behind a balancer that sends each request to another of
// them, while they are killed and started again: what one process promises, they promise together.
package instances
