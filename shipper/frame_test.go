package shipper

import (
	"bytes"
	"testing"

	"agentd/agent/protocol"
	"agentd/shipper/internal/queue"
)

// frameAll cuts text as one stream whose reads ended at the given places.
func frameAll(text []byte, maxLine, batch int, cuts []byte) (out []byte, count int64) {
	var runs [queue.Streams][]queue.Run
	pos := 0
	for i := 0; pos < len(text); i++ {
		n := len(text) - pos
		if i < len(cuts) {
			n = min(n, int(cuts[i])+1)
		}
		runs[0] = append(runs[0], queue.Run{Data: text[pos : pos+n], Pos: int64(pos), Time: int64(1000 + i)})
		pos += n
	}
	var f framer
	f.load(maxLine, runs, [queue.Streams]int64{}, 0)
	for more := true; more; {
		more = f.next(batch)
		out = append(out, f.out...)
		count += f.count
		f.reset()
	}
	return out, count
}

// Whatever the bytes, and wherever reads and batches end: joined, the records are the bytes again;
// each is one that the protocol's own codec would write; none is longer than allowed.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n\"quote\" \\ \x01\t\nlast"), uint16(64), []byte{1, 2, 3})
	f.Add(bytes.Repeat([]byte("𝄞€é\xff"), 100), uint16(65), []byte{0, 0, 0, 0})
	f.Add(bytes.Repeat([]byte{0}, 300), uint16(64), []byte{63})
	f.Add([]byte("\xf0\x9d\x84"), uint16(64), []byte{})
	f.Fuzz(func(t *testing.T, text []byte, maxLine uint16, cuts []byte) {
		limit := int(maxLine)%4096 + minMaxLine
		out, count := frameAll(text, limit, 500, cuts)
		var joined []byte
		n, open := int64(0), false
		for line := range bytes.Lines(out) {
			r, err := protocol.ParseRecord(line)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if again := protocol.AppendRecord(nil, r); !bytes.Equal(again, line) {
				t.Fatalf("%q, and the codec writes %q", line, again)
			}
			if size := len(r.Text) + len(r.Bytes); size > limit {
				t.Fatalf("a record of %d bytes, at most %d are allowed", size, limit)
			}
			joined = append(append(joined, r.Text...), r.Bytes...)
			if !r.Part && !r.EOF {
				joined = append(joined, '\n')
			}
			open = r.Part
			n++
		}
		if n != count || open {
			t.Fatalf("%d records, %d counted; the last line is open: %v", n, count, open)
		}
		if !bytes.Equal(joined, text) {
			t.Fatalf("joined %q, want %q", joined, text)
		}
		// The numbers don't depend on where reads and batches end.
		if _, again := frameAll(text, limit, 1<<20, nil); again != count {
			t.Fatalf("%d records, and %d when it is read at once", count, again)
		}
	})
}

// FuzzDecode: a stored batch may be anything.
func FuzzDecode(f *testing.F) {
	var e encoder
	for id := range encodingNames {
		frame, err := e.frame(nil, []byte(numbered(1, 50)), id)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame, id)
	}
	f.Fuzz(func(t *testing.T, data []byte, id uint8) {
		if out, err := decode(data, id); err == nil && id != encIdentity && len(out) > maxDecoded {
			t.Fatalf("%d bytes, at most %d are allowed", len(out), maxDecoded)
		}
	})
}

// What was sealed several times over decodes as one body, as the protocol allows.
func TestFramesCanBeConcatenated(t *testing.T) {
	var e encoder
	for id, name := range encodingNames {
		var body []byte
		for i := range 3 {
			frame, err := e.frame(nil, []byte(numbered(1000*i+1, 1000*i+1000)), id)
			if err != nil {
				t.Fatal(err)
			}
			body = append(body, frame...)
		}
		if got, err := decode(body, id); err != nil || string(got) != numbered(1, 1000)+numbered(1001, 2000)+numbered(2001, 3000) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}
