// Package identity holds the trials of an agent's identity with the real processes: keys that expire in every
// situation, and a state directory that was copied.
package identity
