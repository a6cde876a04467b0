// Package spool keeps batches of records on disk until somebody else has stored them. What Append
// said yes to survives a crash and a power cut; what is lost all the same is known by exact numbers.
//
// # Shape
//
// A spool is a row of epochs. An epoch is one small badger database that is written once:
//
//	            Append                     all acknowledged, or dropped
//	(nothing) ─────────► open ───────► sealed ───────────────► trash ──► (nothing)
//	                      │   full        │                      ▲
//	                      │               │ something in it      │
//	                      │               └──── was damaged ─────┼──► quarantine
//	                      └─ full, no room to close ─► lingering ┘
//
// No value is ever deleted, rewritten or collected: space comes back as a directory. The next epoch is
// made when the open one is nearly full, and a full one is sealed beside it, so that Append waits for neither.
//
// # What badger does here, and what it doesn't
//
// badger takes the writes: group commits into a value log and a write-ahead log. It writes them to
// memory (mirror.go), and we bring that to its files. Nothing is read through it. A database that
// exists is never opened with it again, because damage can end the process inside Open, in a
// goroutine that nobody can recover, and because Open writes to sparse mappings, which on a full
// disk is a SIGBUS. Epochs are read with the reader in vlog.go, which checks every length before it
// allocates. So what the spool holds can't keep the process from starting, and a start costs O(epochs).
//
//   - Every value is in the value log (no threshold), so that this one file is all there is to know.
//   - Writes are made durable by one fdatasync of the value log, on a descriptor that was open before
//     the first write. badger's own SyncWrites would sync both logs, and only logs it when syncing the
//     value log fails. After a failed sync or commit the handle is never used again: the epoch is
//     sealed, and what it refused goes into a new one.
//   - The write-ahead log's file gets an entry after the value that it speaks of was synced: what it lists was promised.
//   - The files get all their blocks before the epoch takes its first entry, and are written with write(2):
//     a full disk is an error of Append, never a fault.
//   - Nothing rolls: an epoch is sealed before its value log, write-ahead log or memtable is full.
//   - Before Close, badger is told to drop its keys. It writes a table on the way, in our goroutine,
//     where the fault of a disk that fills in that moment is an error; Close would do it in its own.
//     A sealed epoch is therefore a value log and an INDEX, and to badger an empty database.
//
// # On disk
//
//	LOCK            flock; the holder's pid, for people
//	cursors         cache of next, end, state and meta per attempt, written at most once a second
//	holes           what was given up knowingly (DropOldest, lost epochs, rm); durable before it goes
//	epochs/<8 digits>/
//	    OPENING     there while the epoch is being made: nothing was accepted yet
//	    000001.vlog badger's value log (vlog.go): keys (key.go) and values (value.go)
//	    00001.mem   badger's write-ahead log, while open or after a crash: keys and where their values are
//	    ballast     space that only serves to be freed before closing
//	    INDEX       sealed: what the epoch holds (index.go), a summary first
//	    DAMAGED     something in it couldn't be read: it ends in quarantine
//	    SHIPPED     all acknowledged; its mtime says since when
//	    DISCARD MANIFEST KEYREGISTRY LOCK *.sst   badger's, not read by us
//	dead/<8 digits> dead letters (dead.go)
//	trash/          renamed, to be deleted; deleted at the next start too
//	quarantine/     what couldn't be read; never deleted by us
//
// Files are 0600 and directories 0700: logs hold what jobs print.
//
// # The crash argument
//
// Assumed: what fdatasync reported as done survives; a rename is atomic; a file's bytes may be
// damaged anywhere and at any time, but not so that two CRC-32C and the numbers agree by chance.
// Not assumed: that unsynced pages are lost, or kept, or written in order.
//
//   - Append answers after fdatasync, so that what it accepted is in the value log. A crash in the
//     middle of a write leaves entries that nobody was promised; whole ones are kept (the same
//     batch may then be there twice, which dense numbers make harmless), torn ones are passed over.
//     Entries are written in the order of Append, each in a transaction of its own, so that a killed
//     process leaves a beginning of what was under way and never its middle: whoever still has the
//     rest can go by the highest number. (For the same reason nothing of a call is written behind what
//     was refused.) The torn one is the last, and isn't in the write-ahead log, which lists what was
//     synced. That log, too, may be torn at its end.
//   - A crash while an epoch is made leaves OPENING, or an empty log: trash.
//   - A crash while it is sealed leaves no INDEX: it is scanned at the next start, once.
//   - A crash while it is removed leaves it under its old name (then its numbers are acknowledged
//     again) or in trash.
//   - Cursors may be older or missing: the server's next is asked for anyway, and sending twice is
//     harmless. Holes are written before what they stand for goes.
//
// # The damage argument
//
// A value's header sum covers its key; the key holds both ends of the range. A batch is handed out
// only if header, data and range agree, so that a wrong batch needs a collision. A batch that isn't
// handed out is a hole, and a hole is never silent: its end comes from whatever is left of INDEX,
// write-ahead log, the next batch, the holes file and the cursors. Numbers are dense, so that a gap
// between two batches shows by itself. What can't be known: that an attempt went on, when its newest
// epoch and the cursors are both gone.
//
// When an entry's length is damaged, the scan goes on at the next place where a key and a value
// header fit their checksum, or where the write-ahead log says that one is.
package spool
