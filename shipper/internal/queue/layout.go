package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

const (
	superSize  = 4096
	supersSize = 2 * superSize // two copies: one flipped byte must not lose the queue
	slotSize   = 1024
	stateAt    = 512 // of the two states within a slot
	stateSize  = 128
	pageHead   = 64
	runHead    = 32
	batchHead  = 112
	osPage     = 4096 // what the kernel faults in, and so where a copy can stop
	sentinel   = 16

	version = 1

	// maxSize is far above any sensible queue: a length that damage made up must not be mapped.
	maxSize = 64 << 30

	// MaxJobID is the protocol's bound on ids, in bytes.
	MaxJobID = 64
	// MaxToken is what is left of a slot for a lease token, in bytes.
	MaxToken = 400

	// Streams is how many streams an attempt has: out, err and the agent's remarks.
	Streams = 3
)

// The words that make things true differ in more than one byte, so that a flipped byte turns
// none of them into another.
const (
	kindFree  = 0
	kindRaw   = 0x5241_5750
	kindChain = 0x4348_4E50

	runNone   = 0
	runIntent = 0x494E_5452
	runDone   = 0x444F_4E52

	slotFree = 0
	slotLive = 0x4C49_5645

	commitWord = 0x7E1D_C0DE // of a batch header
)

var (
	magic      = [8]byte{'a', 'g', 'e', 'n', 't', 'd', 'Q', version}
	slotMagic  = uint32(0x51_5107_01)
	batchMagic = uint32(0xBA_7C48_01)

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.NativeEndian
)

// Errors of opening a queue file.
var (
	// ErrNotQueue means that the file isn't a queue, or that both superblocks are damaged.
	ErrNotQueue = errors.New("queue: not a queue file")
	// ErrLocked means that another process has the file.
	ErrLocked = errors.New("queue: another process uses this queue file")
)

// layout is where things are in the file.
type layout struct {
	size     int64
	pageSize int
	slots    int
	pages    int
	pagesAt  int64
	mark     [sentinel]byte // written into the space before a read
	boot     [16]byte
}

// newLayout divides size bytes up.
func newLayout(size int64) layout {
	l := layout{size: size &^ (osPage - 1)}
	// 256 pages at least, so that a small queue can be shared, and 64 KiB at most: what a pipe holds.
	l.pageSize = min(max(1<<(bits.Len64(uint64(l.size/256))-1), osPage), 64<<10)
	// A slot for every 50 KiB: 2 % of the queue at most. Attempts that are in the spool need none.
	l.slots = int(min(max(l.size/(50<<10), 16), 512))
	l.place()
	return l
}

func (l *layout) place() {
	l.pagesAt = (supersSize + int64(l.slots)*slotSize + osPage - 1) &^ (osPage - 1)
	l.pages = int((l.size - l.pagesAt) / int64(l.pageSize))
}

func (l *layout) slotAt(i int) int64 { return supersSize + int64(i)*slotSize }
func (l *layout) pageAt(i int) int64 { return l.pagesAt + int64(i)*int64(l.pageSize) }
func (l *layout) pageData() int      { return l.pageSize - pageHead }

func (l *layout) encode() []byte {
	b := make([]byte, 0, superSize)
	b = append(b, magic[:]...)
	b = le.AppendUint64(b, uint64(l.size))
	b = le.AppendUint32(b, uint32(l.pageSize))
	b = le.AppendUint32(b, uint32(l.slots))
	b = append(b, l.mark[:]...)
	b = append(b, l.boot[:]...)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseLayout reads the superblock. Nothing in it is believed before its CRC holds, and then only within bounds.
func parseLayout(mem []byte) (layout, error) {
	for at := 0; at < supersSize; at += superSize {
		if len(mem) < at+superSize {
			break
		}
		b := mem[at:]
		const body = 8 + 8 + 4 + 4 + sentinel + 16
		if !bytes.Equal(b[:8], magic[:]) || crc32.Checksum(b[:body], castagnoli) != le.Uint32(b[body:]) {
			continue
		}
		l := layout{size: int64(le.Uint64(b[8:])), pageSize: int(le.Uint32(b[16:])), slots: int(le.Uint32(b[20:]))}
		copy(l.mark[:], b[24:])
		copy(l.boot[:], b[24+sentinel:])
		if l.size < supersSize || l.size > maxSize || l.pageSize < osPage || l.pageSize > 1<<20 || bits.OnesCount(uint(l.pageSize)) != 1 ||
			l.slots < 1 || l.slots > 1<<16 {
			continue
		}
		l.place()
		if l.pages < 1 {
			continue
		}
		return l, nil
	}
	return layout{}, ErrNotQueue
}

// Ident is who an attempt is. It is written once, before the attempt's first byte.
type Ident struct {
	JobID   string
	Attempt int64
	Token   string
	MaxLine int // so that lines are cut at the same places after a restart with another configuration
}

func (id Ident) validate() error {
	if id.JobID == "" || len(id.JobID) > MaxJobID || len(id.Token) > MaxToken {
		return fmt.Errorf("queue: job id of %d and lease token of %d bytes: at most %d and %d", len(id.JobID), len(id.Token), MaxJobID, MaxToken)
	}
	return nil
}

// slot: live u32, crc u32, magic u32, maxLine u32, gen u64, attempt i64, lengths u16 u16, job, token
func encodeIdent(b []byte, gen uint64, id Ident) {
	clear(b[4:stateAt])
	le.PutUint32(b[8:], slotMagic)
	le.PutUint32(b[12:], uint32(id.MaxLine))
	le.PutUint64(b[16:], gen)
	le.PutUint64(b[24:], uint64(id.Attempt))
	le.PutUint16(b[32:], uint16(len(id.JobID)))
	le.PutUint16(b[34:], uint16(len(id.Token)))
	copy(b[40:40+MaxJobID], id.JobID)      //
	copy(b[40+MaxJobID:stateAt], id.Token) //
	le.PutUint32(b[4:], crc32.Checksum(b[8:stateAt], castagnoli))
}

func parseIdent(b []byte) (gen uint64, id Ident, ok bool) {
	if le.Uint32(b[8:]) != slotMagic || crc32.Checksum(b[8:stateAt], castagnoli) != le.Uint32(b[4:]) {
		return 0, Ident{}, false
	}
	job, token := int(le.Uint16(b[32:])), int(le.Uint16(b[34:]))
	if job > MaxJobID || token > MaxToken {
		return 0, Ident{}, false
	}
	return le.Uint64(b[16:]), Ident{
		JobID: string(b[40 : 40+job]), Attempt: int64(le.Uint64(b[24:])),
		Token: string(b[40+MaxJobID : 40+MaxJobID+token]), MaxLine: int(le.Uint32(b[12:])),
	}, true
}

// state is what of an attempt has been released and sealed. Two copies are written in turn.
type state struct {
	seq      uint64
	head     int64 // position in the chain of the first batch that is held
	tail     int64 // where the next batch goes
	headNext int64 // every number below it has been released
	next     int64 // the next number to give out
	used     [Streams]int64
	part     uint8 // bit per stream: its last record has part set
	closed   bool
}

func (s *state) encode(b []byte, gen uint64) {
	le.PutUint64(b[8:], s.seq)
	for i, v := range [...]int64{s.head, s.tail, s.headNext, s.next, s.used[0], s.used[1], s.used[2]} {
		le.PutUint64(b[16+8*i:], uint64(v))
	}
	b[72] = s.part
	b[73] = 0
	if s.closed {
		b[73] = 1
	}
	le.PutUint64(b[80:], gen)
	le.PutUint32(b[0:], crc32.Checksum(b[8:88], castagnoli))
}

func parseState(b []byte, gen uint64) (state, bool) {
	if crc32.Checksum(b[8:88], castagnoli) != le.Uint32(b) || le.Uint64(b[80:]) != gen {
		return state{}, false
	}
	v := func(i int) int64 { return int64(le.Uint64(b[16+8*i:])) }
	return state{
		seq: le.Uint64(b[8:]), head: v(0), tail: v(1), headNext: v(2), next: v(3), used: [Streams]int64{v(4), v(5), v(6)},
		part: b[72], closed: b[73] == 1,
	}, true
}

// pageID is the header of a page in use: kind u32, crc u32, gen u64, seq i64, start i64, slot u32, stream u32.
type pageID struct {
	kind   uint32
	gen    uint64
	seq    int64
	start  int64
	slot   int
	stream int
}

func (p pageID) encode(b []byte) {
	le.PutUint64(b[8:], p.gen)
	le.PutUint64(b[16:], uint64(p.seq))
	le.PutUint64(b[24:], uint64(p.start))
	le.PutUint32(b[32:], uint32(p.slot))
	le.PutUint32(b[36:], uint32(p.stream))
	le.PutUint32(b[4:], crc32.Update(p.kind, castagnoli, b[8:40]))
	store(b, p.kind)
}

func parsePage(b []byte) (pageID, bool) {
	p := pageID{
		kind: load(b), gen: le.Uint64(b[8:]), seq: int64(le.Uint64(b[16:])), start: int64(le.Uint64(b[24:])),
		slot: int(le.Uint32(b[32:])), stream: int(le.Uint32(b[36:])),
	}
	if p.kind == kindFree {
		return p, false
	}
	for _, kind := range [...]uint32{kindRaw, kindChain} { // the word itself may be what is damaged
		if crc32.Update(kind, castagnoli, b[8:40]) == le.Uint32(b[4:]) {
			p.kind = kind
			return p, p.seq >= 0 && p.start >= 0 && p.stream < Streams
		}
	}
	return p, false
}

// Batch is sealed data in a chain, or about to be.
type Batch struct {
	First, Count int64
	Encoding     uint8 // opaque
	Decoded      int64 // bytes before compression
	Oldest       int64 // when its oldest byte was read, in microseconds since the epoch
	Len          int   // bytes of data
	Damaged      bool  // the data can't be read back; the numbers stand

	pos int64  // of the header in the chain
	crc uint32 // of the data
}

// End is the number after the batch's last.
func (b Batch) End() int64 { return b.First + b.Count }

// header: magic u32, crc u32, then 8..: pos, first, count, decoded, oldest, used[3], len u32, datacrc u32, encoding u8, part u8; at 104 the commit word
func (b *Batch) encode(dst []byte, gen uint64, used [Streams]int64, part uint8) {
	clear(dst[:batchHead])
	le.PutUint32(dst, batchMagic)
	for i, v := range [...]int64{b.pos, b.First, b.Count, b.Decoded, b.Oldest, used[0], used[1], used[2]} {
		le.PutUint64(dst[8+8*i:], uint64(v))
	}
	le.PutUint32(dst[72:], uint32(b.Len))
	le.PutUint32(dst[76:], b.crc)
	dst[80], dst[81] = b.Encoding, part
	le.PutUint32(dst[4:], crc32.Update(uint32(gen), castagnoli, dst[8:88]))
}

func parseBatch(b []byte, gen uint64, pos int64) (h Batch, used [Streams]int64, part uint8, ok bool) {
	if le.Uint32(b) != batchMagic || load(b[104:]) != commitWord ||
		crc32.Update(uint32(gen), castagnoli, b[8:88]) != le.Uint32(b[4:]) {
		return h, used, 0, false
	}
	v := func(i int) int64 { return int64(le.Uint64(b[8+8*i:])) }
	h = Batch{
		First: v(1), Count: v(2), Decoded: v(3), Oldest: v(4), Len: int(le.Uint32(b[72:])), Encoding: b[80],
		pos: v(0), crc: le.Uint32(b[76:]),
	}
	ok = h.pos == pos && h.First >= 0 && h.Count > 0 && h.First+h.Count > h.First
	return h, [Streams]int64{v(5), v(6), v(7)}, b[81], ok
}

// store publishes v: whatever was written before is there for whoever finds v, another process after a kill included.
// b must be aligned to 4 bytes in the file.
func store(b []byte, v uint32) { atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[0])), v) } //nolint:gosec // aligned by layout

func load(b []byte) uint32 { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[0]))) } //nolint:gosec // aligned by layout
