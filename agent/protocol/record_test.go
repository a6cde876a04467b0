package protocol_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"agentd/agent/protocol"
)

func TestRecordsAreWrittenAsTheProtocolHasThem(t *testing.T) {
	for _, c := range []struct {
		name   string
		record protocol.Record
		want   string
	}{
		{"a line", protocol.Record{Time: 1732888888123456, Stream: protocol.Stdout, Text: "a line"}, `{"ts":1732888888123456,"s":"out","m":"a line"}`},
		{"empty", protocol.Record{Time: 1, Stream: protocol.Stderr}, `{"ts":1,"s":"err","m":""}`},
		{"part", protocol.Record{Time: 1, Stream: protocol.Stderr, Text: "x", Part: true}, `{"ts":1,"s":"err","m":"x","part":true}`},
		{"end of file", protocol.Record{Time: 1, Stream: protocol.Remark, Bytes: []byte("x"), EOF: true}, `{"ts":1,"s":"agent","m":"x","eof":true}`},
		{"not UTF-8", protocol.Record{Time: 1, Stream: protocol.Stdout, Bytes: []byte{0xff, 0, 'a'}}, `{"ts":1,"s":"out","b":"/wBh"}`},
		{"not UTF-8 in text", protocol.Record{Time: 1, Stream: protocol.Stdout, Text: "ok \"so\" far\xff"}, `{"ts":1,"s":"out","b":"b2sgInNvIiBmYXL/"}`},
		{"escapes", protocol.Record{Time: 1, Stream: protocol.Stdout, Text: "\"\\\n\r\t\x00\x1f\x7f/<é\u2028"}, `{"ts":1,"s":"out","m":"\"\\\n\r\t\u0000\u001f` + "\x7f/<é\u2028" + `"}`},
		{"gap", protocol.Record{Time: 7, Stream: protocol.Remark, Gap: 512, Reason: protocol.GapSpoolFull}, `{"ts":7,"s":"agent","gap":512,"reason":"spoolFull"}`},
		{"bare gap", protocol.Record{Gap: 1, Reason: protocol.GapDeadLetter}, `{"gap":1,"reason":"deadLetter"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(protocol.AppendRecord([]byte("before"), c.record)); got != "before"+c.want+"\n" {
				t.Fatalf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestRecordsThatAreNoneAreRefusedWithTheField(t *testing.T) {
	for line, want := range map[string]string{
		`{"s":"out","m":"x"}`:                     "ts: is required",
		`{"ts":1,"m":"x"}`:                        "s: is required",
		`{"ts":1,"s":"out"}`:                      "m: is required, or b, or gap, and only one of them",
		`{"ts":1,"s":"out","m":"x","b":"eA=="}`:   "m: is required, or b, or gap, and only one of them",
		`{"ts":1,"s":"out","m":"x","gap":2}`:      "m: is required, or b, or gap, and only one of them",
		`{"ts":1,"s":"out","M":"x"}`:              "m: is required, or b, or gap, and only one of them",
		`{"ts":1,"s":"in","m":"x"}`:               "s: is not out, err or agent",
		`{"ts":"1","s":"out","m":"x"}`:            "ts: is not a whole number in range",
		`{"ts":1.5,"s":"out","m":"x"}`:            "ts: is not a whole number in range",
		`{"ts":1,"s":"out","b":"eA"}`:             "b: is not padded standard base64",
		`{"ts":1,"s":"out","m":7}`:                "m: is not a string",
		`{"gap":0}`:                               "gap: is 0, not a number from 1",
		`{"gap":-3}`:                              "gap: is -3, not a number from 1",
		`{"ts":1,"s":"out","m":"x","part":"yes"}`: "part: is not true or false",
		`[]`: "is not a JSON object: json: cannot unmarshal array into Go value of type map[string]json.RawMessage",
		"{\"ts\":1,\"s\":\"out\",\"m\":\"\xff\"}": "is not UTF-8",
	} {
		if r, err := protocol.ParseRecord([]byte(line)); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %+v, %v\nwant %s", line, r, err, want)
		}
	}
}

func TestRecordsInOtherShapesAreRead(t *testing.T) {
	want := protocol.Record{Time: 1, Stream: protocol.Stdout, Text: "aé\n", Part: true}
	for _, line := range []string{
		`{"ts":1,"s":"out","m":"aé\n","part":true}`,
		`{ "m": "a\u00e9\u000A", "part": true, "eof": false, "s": "out", "ts": 1, "other": {"m": 3}, "reason": null, "gap": null }` + "\r\n",
		`{"ts":1,"s":"out","m":"aé\n","part":true,"n":17}`,
	} {
		got, err := protocol.ParseRecord([]byte(line))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\ngot  %+v, %v\nwant %+v", line, got, err, want)
		}
	}
}

// TestEveryByteAtEveryPlace puts each byte value at each place of a word, after each kind of
// text, so that the scan eight bytes at a time meets it in every lane and in its tail.
func TestEveryByteAtEveryPlace(t *testing.T) {
	for _, fill := range []string{"a", "é", "\""} {
		for at := range 20 {
			for b := range 256 {
				line := []byte(strings.Repeat(fill, 20))
				line[at] = byte(b)
				roundTrip(t, line)
			}
		}
	}
}

func TestARuneCutAtEveryPlace(t *testing.T) { // L11
	text := []byte("0123456789 \U0001F600 \u2028 é \xed\xa0\x80 end")
	for i := range text {
		roundTrip(t, text[:i])
		roundTrip(t, text[i:])
	}
}

// roundTrip checks that a line comes back byte for byte, as text exactly where it is text, and
// that encoding/json reads the same.
func roundTrip(t *testing.T, line []byte) {
	t.Helper()
	body := protocol.AppendLine(nil, 5, protocol.Stdout, line, false, true)
	got, err := protocol.ParseRecord(body)
	if err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	want := protocol.Record{Time: 5, Stream: protocol.Stdout, EOF: true}
	if utf8.Valid(line) {
		want.Text = string(line)
	} else {
		want.Bytes = line
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q\ngot  %+v\nwant %+v", body, got, want)
	}
	if bytes.Count(body, []byte("\n")) != 1 {
		t.Fatalf("%q is not one line", body)
	}
	var std struct {
		M string `json:"m"`
		B []byte `json:"b"`
	}
	if err := json.Unmarshal(body, &std); err != nil || std.M != want.Text || !bytes.Equal(std.B, want.Bytes) {
		t.Fatalf("%q: encoding/json reads %+v, %v", body, std, err)
	}
	if again := protocol.AppendRecord(nil, got); !bytes.Equal(again, body) {
		t.Fatalf("written again: %q, first: %q", again, body)
	}
}

func FuzzAppendLine(f *testing.F) {
	for _, s := range []string{"", "a line", "é\xff", "\x00\"\\", strings.Repeat("x", 65), "\xf0\x9f\x98", "\u2028<>&"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) { roundTrip(t, line) })
}

func FuzzParseRecord(f *testing.F) {
	for _, s := range []string{
		`{"ts":1,"s":"out","m":"x"}`, `{"ts":-1,"s":"err","b":"/wBh","part":true,"eof":true}`, `{"gap":9,"reason":"spoolFull"}`,
		`{"ts":1,"s":"agent","gap":3}`, `{"ts":01,"s":"out","m":"\ud800"}`, `{"m":"\u00e9\/\b\f","s":"out","ts":1e3}`, `{"ts":1,"s":"out","m":"x","m":"y"}`, `{}`, `{"ts":`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got, err := protocol.ParseRecord(line)
		if want, wantErr := protocol.ParseGeneral(line); (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: the fast way reads %+v, %v; the general one %+v, %v", line, got, err, want, wantErr)
		}
		if err != nil {
			return
		}
		again, err := protocol.ParseRecord(protocol.AppendRecord(nil, got))
		if err != nil {
			t.Fatalf("%+v can't be read back: %v", got, err)
		}
		if again.Numbers() != got.Numbers() || again.Text+string(again.Bytes) != got.Text+string(got.Bytes) {
			t.Fatalf("read back: %+v, first: %+v", again, got)
		}
	})
}

func plainLine() []byte {
	return []byte(strings.Repeat("2026-11-29 16:30:00 INFO extract row 12345 of table customers ", 4))[:200]
}

func BenchmarkAppendLine(b *testing.B) {
	for name, line := range map[string][]byte{
		"plain":   plainLine(),
		"json":    []byte(strings.Repeat(`{"level":"info","msg":"row done"},`, 6)[:200]),
		"utf8":    []byte(strings.Repeat("größer als das Maß ", 11)[:200]),
		"invalid": append(plainLine()[:199], 0xff),
	} {
		b.Run(name, func(b *testing.B) {
			dst := make([]byte, 0, 1024)
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				dst = protocol.AppendLine(dst[:0], 1732888888123456, protocol.Stdout, line, false, false)
			}
		})
	}
	b.Run("copy", func(b *testing.B) { // what to compare with
		line, dst := plainLine(), make([]byte, 0, 1024)
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			dst = append(dst[:0], line...)
		}
	})
}

func BenchmarkParseRecord(b *testing.B) {
	for name, line := range map[string][]byte{"plain": plainLine(), "json": []byte(strings.Repeat(`{"level":"info","msg":"row done"},`, 6)[:200])} {
		b.Run(name, func(b *testing.B) {
			body := protocol.AppendLine(nil, 1732888888123456, protocol.Stdout, line, false, false)
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := protocol.ParseRecord(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
