package queue

import (
	"fmt"
	"os"
)

// Inspected is an attempt in a queue file that is only looked at.
type Inspected struct {
	Ident
	Next    int64
	Closed  bool
	Batches []InspectedBatch
	Runs    [Streams][]Run // what isn't sealed
	Parts   uint8
	Used    [Streams]int64
}

// InspectedBatch is a sealed batch with its data.
type InspectedBatch struct {
	Batch

	Data []byte // nil when it is damaged
}

// Inspect reads the queue file at path without changing or locking it. Of a file in use it shows
// what was whole at the moment of reading.
func Inspect(path string) ([]Inspected, error) {
	mem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("queue: inspect: %w", err)
	}
	lay, err := parseLayout(mem)
	if err != nil {
		return nil, fmt.Errorf("queue: inspect %s: %w", path, err)
	}
	img := parse(mem, int64(len(mem)), lay, lay.boot == bootID())
	var out []Inspected
	for _, m := range img.attempts {
		in := Inspected{Ident: m.id, Next: m.st.next, Closed: m.st.closed, Parts: m.st.part, Used: m.st.used}
		for _, b := range m.batches {
			ib := InspectedBatch{Batch: b}
			if !b.Damaged {
				ib.Data = img.data(mem, m, b)
			}
			in.Batches = append(in.Batches, ib)
		}
		for s := range m.raw {
			in.Runs[s] = m.raw[s].runs
		}
		out = append(out, in)
	}
	return out, nil
}

func (img *image) data(mem []byte, a *imaged, b Batch) []byte {
	out, size := make([]byte, 0, b.Len), int64(img.lay.pageData())
	for pos, left := b.pos+batchHead, int64(b.Len); left > 0; {
		off := pos % size
		n := min(left, size-off)
		out = append(out, img.page(mem, a.chain[pos/size])[pageHead+off:pageHead+off+n]...)
		pos, left = pos+n, left-n
	}
	return out
}
