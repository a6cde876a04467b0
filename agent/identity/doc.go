// Package identity keeps who an agent is: its key pair and agent id on disk, its API key in
// memory. It links, re-links by proof, renews, and says in words how it stands.
package identity
