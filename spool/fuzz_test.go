package spool

import (
	"bytes"
	"errors"
	"testing"
)

func FuzzValue(f *testing.F) {
	k := appendKey(nil, key{kind: kindBatch, attempt: "job/1", first: 5, next: 9})
	f.Add(k, appendValue(nil, k, header{count: 4, decoded: 9, encoding: 2}, []byte("data")))
	f.Add(k, []byte{valueMagic0, valueMagic1, valueVersion})
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, k, v []byte) {
		b, err := parseBatch(k, v)
		if err != nil {
			return
		}
		h := header{count: b.Count, decoded: b.Decoded, encoding: b.Encoding, stored: b.Stored.UnixMicro()}
		if again := appendValue(nil, k, h, b.Data); !bytes.Equal(again[8:], v[8:]) {
			t.Fatalf("% x became % x", v, again)
		}
	})
}

func FuzzValueLog(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 100))
	k := append(appendKey(nil, key{kind: kindBatch, attempt: "job/1", first: 5, next: 9}), make([]byte, 8)...)
	v := appendValue(nil, k[:len(k)-8], header{count: 4}, []byte("data"))
	e := append([]byte{0, 0, byte(len(k)), byte(len(v)), 0}, k...)
	e = append(append(e, v...), 0, 0, 0, 0)
	f.Add(append(make([]byte, vlogFileHeader), e...))
	f.Fuzz(func(t *testing.T, b []byte) {
		log := newLogReader(bytes.NewReader(b), int64(len(b)))
		res := scanResult{ix: newIndex()}
		res.scanValues(log, map[int64]bool{})
		for at := int64(0); at < log.end; {
			e, err := log.entry(at)
			if err != nil {
				break
			}
			if e.size <= 0 || at+e.size > log.end {
				t.Fatalf("entry of %d bytes at %d of %d", e.size, at, log.end)
			}
			_, _ = log.value(e) // must only not crash
			at += e.size
		}
		for id, refs := range res.ix.refs {
			for _, q := range refs {
				if q.valueAt+q.valueLen > int64(len(b)) || q.first >= q.next {
					t.Fatalf("%s: %+v", id, q)
				}
			}
		}
	})
}

func FuzzIndex(f *testing.F) {
	ix := newIndex()
	ix.setMeta("a/1", []byte("m"))
	ix.add("a/1", ref{first: 1, next: 4, valueAt: 20, valueLen: 50})
	f.Add(ix.encode())
	f.Add([]byte(indexMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readIndex(bytes.NewReader(b), int64(len(b)), true)
		if err == nil && got.refs == nil {
			t.Fatal("no entries and no error")
		}
	})
}

func FuzzStateFile(f *testing.F) {
	f.Add(frame(kindCursors, []byte(`{"a/1":{"next":1,"end":2}}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		body, err := unframe(kindCursors, b)
		if err == nil && !bytes.Equal(frame(kindCursors, body), b) {
			t.Fatalf("%q", b)
		}
	})
}

func FuzzStream(f *testing.F) {
	f.Add(appendFrame(nil, batch("a/1", 3, 2, 10), nil))
	f.Add(appendFrame(nil, Batch{}, &HoleError{"a/1", 3, 9, "x"}))
	f.Add(appendFrame(nil, Batch{}, errors.New("x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := readFrame(bytes.NewReader(b))
		if err == nil && fr.err == nil && fr.dead == nil && fr.batch.Count < 1 {
			t.Fatalf("%+v", fr)
		}
	})
}
