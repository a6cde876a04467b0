// Package journal is the agent's reserved store: which attempts run, and which completions the server
// has not yet acknowledged. Its space is allocated before the first job is accepted, so an update never
// fails because logs filled the disk.
//
// # On disk
//
// One file of fixed size, 0600, since it holds lease tokens; little-endian:
//
//	header block, 4096 bytes:  "AGDJRNL1" | version u32 | slots u32 | half size u32 | CRC-32C u32 of what precedes
//	slot 0: half A | half B
//	slot 1: half A | half B
//	…
//	half, 288 KiB:  magic u32 | CRC-32C u32 of what follows | sequence u64 | slot u32 | half u32 | meta u32 | result u32 |
//	                meta bytes: the entry as JSON, without its result | result bytes: the completion's result as it is
//
// A half with meta = 0 says that the slot is empty. A half of zeros was never written. The file is written in full (zeros) when it
// is made, so that a later write needs neither a block nor an extent of the file system. (On a copy-on-write file system
// every write needs a block, and this promise can't be kept.)
//
// # Why an update loses nothing
//
// A slot's value is the one of its two halves that passes its checksum and has the higher sequence number. An update writes
// the other half, then fdatasync. Wherever it is cut (process killed, power lost, torn write), the half that held the
// value before was not touched: a reader finds the old value or the new one. The slot's and half's own numbers are under the checksum,
// so that a block which the disk put in the wrong place isn't believed.
//
// A half that is neither blank nor passes its checksum is copied to quarantine/ beside the file, reported by Damage, and cleared.
// Then the slot's older value holds. What an older value can do: an attempt that ended is reported lost, or a
// completion that was settled is sent again; the server settles both by its own rules. It can't start a job.
//
// A write or fdatasync that failed is not repeated on the same descriptor, since the kernel reports such an error once and may
// drop the pages: the file is closed and opened again, and the update is made anew, in the same half: what that reads back needn't be on the disk.
//
// Not assumed: that a write is atomic at any size. Assumed: that fdatasync means it, and that a write to one half
// leaves the bytes of the other alone (they are multiples of 4096 bytes apart).
package journal
