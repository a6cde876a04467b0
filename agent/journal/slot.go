package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unicode/utf8"
)

// Sizes of the layout; doc.go has the picture. A change of any of them is a new version.
const (
	// version stands for the state directory as a whole: the journal is opened first, and what it refuses keeps an older agent
	// from everything else. Whoever changes the format of the spool or the queue raises it, too.
	version    = 1
	blockSize  = 4096
	halfHeader = 32
	// MaxResult is the protocol's limit on a result.
	MaxResult = 256 << 10
	// halfSize leaves 32 KiB for everything but the result: ids and token are short, the error is cut at maxError.
	halfSize = MaxResult + 32<<10
	slotSize = 2 * halfSize
	maxMeta  = halfSize - MaxResult - halfHeader
	// maxError is how much of a completion's error is kept. It is a sentence; JSON escapes can make it six times as long.
	maxError = 4 << 10

	halfMagic = 0x3148_4a41 // "AJH1"
)

var (
	fileMagic  = [8]byte{'A', 'G', 'D', 'J', 'R', 'N', 'L', '1'}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// errBlank: a half that was never written.
var errBlank = errors.New("never written")

// encodeHalf makes the bytes of one half; entry nil says that the slot is empty.
func encodeHalf(e *Entry, seq uint64, slot, half int) ([]byte, error) {
	var meta, result []byte
	if e != nil {
		bare := *e
		if e.Completion != nil {
			c := *e.Completion
			result, c.Result = c.Result, nil
			if len(c.Error) > maxError {
				c.Error = strings.ToValidUTF8(c.Error[:maxError], "") + "…"
			}
			c.Error = strings.ToValidUTF8(c.Error, string(utf8.RuneError))
			bare.Completion = &c
		}
		var err error
		if meta, err = json.Marshal(bare); err != nil {
			return nil, fmt.Errorf("journal: encode: %w", err)
		}
		if len(meta) > maxMeta || len(result) > MaxResult {
			return nil, fmt.Errorf("%w: %d bytes and a result of %d", ErrTooLarge, len(meta), len(result))
		}
	}
	b := make([]byte, halfHeader, halfHeader+len(meta)+len(result))
	le := binary.LittleEndian
	le.PutUint32(b[0:], halfMagic)
	le.PutUint64(b[8:], seq)
	le.PutUint32(b[16:], uint32(slot))
	le.PutUint32(b[20:], uint32(half))
	le.PutUint32(b[24:], uint32(len(meta)))
	le.PutUint32(b[28:], uint32(len(result)))
	b = append(append(b, meta...), result...)
	le.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b, nil
}

// decodeHalf reads one half from r. entry nil without an error: the slot is empty.
func decodeHalf(r io.Reader, slot, half int) (seq uint64, entry *Entry, err error) {
	var head [halfHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("cut short: %w", err)
	}
	if head == [halfHeader]byte{} {
		return 0, nil, errBlank
	}
	le := binary.LittleEndian
	if le.Uint32(head[0:]) != halfMagic {
		return 0, nil, errors.New("wrong magic")
	}
	meta, result := le.Uint32(head[24:]), le.Uint32(head[28:])
	if meta > maxMeta || result > MaxResult { // before anything is allocated by them
		return 0, nil, errors.New("impossible lengths")
	}
	body := make([]byte, meta+result)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("cut short: %w", err)
	}
	sum := crc32.Update(crc32.Checksum(head[8:], castagnoli), castagnoli, body)
	if sum != le.Uint32(head[4:]) {
		return 0, nil, errors.New("wrong checksum")
	}
	if int(le.Uint32(head[16:])) != slot || int(le.Uint32(head[20:])) != half {
		return 0, nil, fmt.Errorf("it belongs to slot %d half %d", le.Uint32(head[16:]), le.Uint32(head[20:]))
	}
	seq = le.Uint64(head[8:])
	if meta == 0 {
		return seq, nil, nil
	}
	entry = new(Entry)
	if err := json.Unmarshal(body[:meta], entry); err != nil {
		return 0, nil, fmt.Errorf("not an entry: %w", err)
	}
	if entry.JobID == "" {
		return 0, nil, errors.New("an entry without a job")
	}
	if result > 0 {
		if entry.Completion == nil {
			return 0, nil, errors.New("a result without a completion")
		}
		entry.Completion.Result = body[meta:]
	}
	return seq, entry, nil
}

// encodeHeader makes the file's first block.
func encodeHeader(slots int) []byte {
	b := make([]byte, blockSize)
	copy(b, fileMagic[:])
	le := binary.LittleEndian
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], uint32(slots))
	le.PutUint32(b[16:], halfSize)
	le.PutUint32(b[20:], crc32.Checksum(b[:20], castagnoli))
	return b
}

// errVersion: the header is sound and says that this program can't read the file.
var errVersion = errors.New("journal: the file was written by another version of agentd")

func decodeHeader(b []byte) (slots int, err error) {
	if len(b) < blockSize {
		return 0, errors.New("cut short")
	}
	le := binary.LittleEndian
	if [8]byte(b) != fileMagic || le.Uint32(b[20:]) != crc32.Checksum(b[:20], castagnoli) {
		return 0, errors.New("wrong magic or checksum")
	}
	if v, size := le.Uint32(b[8:]), le.Uint32(b[16:]); v != version || size != halfSize {
		return 0, fmt.Errorf("%w (format %d)", errVersion, v)
	}
	return int(le.Uint32(b[12:])), nil
}

func halfOffset(slot, half int) int64 {
	return blockSize + int64(slot)*slotSize + int64(half)*halfSize
}
