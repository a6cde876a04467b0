// Package shipper takes what jobs print and brings it to the control plane: every line that was
// read from a job's pipe arrives exactly once and in order, or a record in the log says what is
// missing and why. The bytes wait in crash-proof memory first, and in the spool when the control
// plane is behind or away.
//
// # The way of a line
//
//	pipe ──read──► raw page ──seal──► batch ──POST──► server: next ──► forgotten
//	                                    │                  ▲
//	                                    └──spill──► spool ─┘
//
// A reader reads the pipe straight into the queue file (package queue has the format and the
// argument why a kill at any instant loses nothing that was read, and doubles nothing). Enough
// bytes, or 250 ms, make a batch: lines become records, get their numbers, are compressed once,
// and replace the raw bytes in one step. Numbers are fixed by that step, before anything ships; a
// restart therefore never numbers a line anew that the server may have seen.
//
// A line without an end waits for it for a second at most; then what there is ships as a part
// record, but never half a rune. Lines longer than MaxLine travel in parts, cut between runes.
// Readers of the log join parts, so neither changes a byte.
//
// # Why nothing is missing and nothing twice
//
// For each attempt, the shipper knows three numbers:
//
//		0 ………… next ………… spoolNext ………… end
//		  stored     in the        in the
//		  at the     spool         queue
//		  server
//
//	  - next moves only by the server's word (or, at start, by its answer to the question). Below it
//	    everything is forgotten, above it nothing is.
//	  - spoolNext moves only when the spool has said that a batch is durable. Then memory lets go of it.
//	    A kill in between leaves it in both; at start what the spool has is dropped from memory.
//	  - A lane, that is an attempt, has one request at a time, which begins at or below next. What the
//	    server has is ignored by the server, so an answer that was lost costs a repetition, no line.
//	  - What lies between next and end, and is neither in the spool nor in the queue, is a hole. It
//	    ships as a gap record, with the reason if it is known. There is no other way past a hole.
//
// # States of a lane
//
//	asking ──next──► shipping ◄──recovered── retrying (back-off, full jitter, for ever)
//	   │                │  └───────failed───────▲
//	   │                ├─refused─► bisecting ─► one record ─► dead letter + gap ─► shipping
//	   └──not_found─────┴──► orphan: all of it to the spool, for the operator
//
// At most half of the requests go to lanes in trouble, and at most half to replays from the spool,
// so neither holds up what is live. 429 pauses all lanes: it is about the endpoint.
//
// # What is not promised
//
// Bytes that a job has written and nobody has read yet die with the pipe when the agent is killed.
// A power cut takes what is in memory only: with durability "spill" at most the last two seconds or
// so while the server is away; with "strict" what was read and not yet fsynced, none of which has
// been shipped. A remark is dropped when memory is full to its reserve (and counted). Without a
// spool, the log of an attempt that the server doesn't know is dropped, not kept.
// A crash between a dead letter and its gap's acknowledgement can put the record among the dead
// letters twice.
package shipper
