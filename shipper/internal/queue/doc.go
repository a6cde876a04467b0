// Package queue is the crash-proof memory of the shipper: one file of fixed size, allocated in
// full when it is made and mapped shared, in which the bytes read from pipes and the batches
// sealed from them live. What a process has put there outlives its SIGKILL, because the pages
// belong to the kernel; what it had half put there is recognised and left out.
//
// # Format, version 1 (integers in the byte order of the machine: the file never leaves it)
//
//	0      superblock: magic, sizes, sentinel, boot id, CRC-32C
//	4096   the same again
//	8192   slots, 1024 bytes each, one for every attempt that has anything in here
//	         0    live, CRC, generation, attempt number, longest line, job id, lease token
//	         512  state A, 640 state B: the one with the higher sequence number counts
//	…      pages, all of one size, each one of
//	         free
//	         raw    one stretch of what one stream of one attempt printed
//	         chain  one stretch of the sealed batches of one attempt
//
// A page begins with 64 bytes: kind, CRC, generation, sequence number within the attempt's stream
// or chain, position of its first byte, slot, stream. Pages of one stream, or of one chain, are
// found again by sorting. A generation is random, so what an earlier attempt left in a slot or a
// page is never taken for the present one's.
//
// Raw pages hold runs: 32 bytes (state, intended length, time, length, CRC of the bytes, CRC of
// the header with the run's position in its stream), then what one read returned. Chains hold
// batches: 112 bytes (first number, count, encoding, lengths, CRC of the data, and how far the raw
// streams are used up by it), then the sealed data, which may go on in the chain's next pages.
//
// # Why a kill loses nothing and doubles nothing
//
// Every change becomes true in one aligned store, and everything that the store makes true was
// written before it:
//
//	bytes read      free ──page header──► raw page ──intent──► reading ──done──► committed run
//	lines sealed    committed runs ──data, header, commit word──► batch, which says how much of the runs it replaces
//	batch released  batch ──state A or B: sequence number, CRC──► released, page freed afterwards
//
// A batch replaces its raw bytes in the very store that makes it a batch, since the position up to
// which the streams are used up is part of its header: there is no moment at which a line is in
// both places, or in neither. A state that was half written has a wrong CRC, and the older one
// counts: then the batch is found by walking on from where that one ends.
//
// One moment needs more: read(2) has copied bytes out of the pipe, and the process dies before it
// can say how many. Before the read we ask the pipe how much it holds (FIONREAD), note that number
// as intent, and write a sentinel at the end of each memory page's part of the space. A pipe's only
// reader gets all it asked for, or at worst all up to a memory page's end, if the kernel gave up on
// a page that was swapped out. So, for an intent that never became a run: every part whose
// sentinel is gone was read. This is exact for every read of 16 bytes and more (the sentinel is
// random; the odds are 2^-123). A shorter read could be missed if it consisted of nothing but the
// sentinel's tail, whose last byte (0xF8 to 0xFF) never occurs in UTF-8.
// What we copy in ourselves, output that was filtered for secrets, has no intent: memmove may store a
// copy's beginning last, and half of one is nothing.
// Bytes that were still in the pipe die with the pipe, as for every reader of every pipe.
//
// # What is not promised
//
// The file is memory. On tmpfs it ends with the machine. In a directory on disk it outlives a power
// cut in whatever mixture of old and new the kernel had written back: runs and batches whose CRC
// holds are used, intents are not (the boot id tells), and the rest becomes a gap. What can't be read is
// copied beside the queue (keep.go) before its pages are used again.
package queue
