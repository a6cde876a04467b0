// Package spool keeps batches of records on disk until somebody else has stored them. What Append
// said yes to survives a crash and a power cut; what is lost all the same is known by exact numbers.
package spool
