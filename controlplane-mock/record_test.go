package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentd/agent/protocol"
)

func mustContent(t *testing.T, r *record) string {
	t.Helper()
	b, err := r.appendContent(nil)
	if err != nil {
		t.Fatalf("content of an accepted record: %v", err)
	}
	return string(b)
}

func TestRecordForms(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	for _, tc := range []struct {
		line string
		fast bool // scanned without the general parser
		want string
		bad  string // part of the fault; "" = valid
	}{
		{line: `{"ts":1732888888123456,"s":"out","m":"a line"}`, fast: true, want: "a line"},
		{line: `{"ts":1,"s":"err","m":"first","part":true}`, fast: true, want: "first"},
		{line: `{"ts":0,"s":"agent","m":"","eof":true}`, fast: true},
		{line: `{"ts":1,"s":"out","m":"` + long + `"}`, fast: true, want: long},
		{line: `{"ts":1,"s":"out","m":"q\"b\\s\/n\nt\tu\u00e9"}`, fast: true, want: "q\"b\\s/n\nt\tué"},
		{line: `{"ts":1,"s":"out","m":"héllo wörld, and some more €"}`, fast: true, want: "héllo wörld, and some more €"},
		{line: `{"ts":1,"s":"out","m":"\u0000"}`, fast: true, want: "\x00"},
		{line: `{"ts":1,"s":"out","b":"/wD+"}`, fast: true, want: "\xff\x00\xfe"},
		{line: `{"ts":1,"s":"out","b":"/w=="}`, fast: true, want: "\xff"},
		{line: `{"ts":1,"s":"out","b":""}`, fast: true},
		{line: `{"ts":1,"s":"out","m":"\ud83d\ude00"}`, want: "😀"},
		{line: `{"ts":-5,"s":"out","m":"before 1970"}`, want: "before 1970"},
		{line: ` { "m" : "spaced" , "s" : "err" , "ts" : 7 } `, want: "spaced"},
		{line: `{"ts":1,"s":"out","m":"x","later":{"a":[1]}}`, want: "x"},
		{line: `{"ts":1,"s":"out","m":"x","part":false,"eof":null}`, want: "x"},
		{line: `{"ts":1,"s":"out","b":"\/wD+"}`, want: "\xff\x00\xfe"},
		{line: `{"ts":1,"s":"agent","gap":512,"reason":"spoolFull"}`},
		{line: `{"gap":1}`},

		{line: ``, bad: "ends within"},
		{line: `null`, bad: "not a JSON object"},
		{line: `[]`, bad: "not a JSON object"},
		{line: `{}`, bad: "ts: is required"},
		{line: `{"ts":1,"s":"out"}`, bad: "one of m, b and gap is required"},
		{line: `{"s":"out","m":"x"}`, bad: "ts: is required"},
		{line: `{"ts":1,"m":"x"}`, bad: "s: is required"},
		{line: `{"ts":1,"s":"in","m":"x"}`, bad: "s: is none of"},
		{line: `{"ts":1,"s":"","m":"x"}`, bad: "s: is none of"},
		{line: `{"TS":1,"s":"out","m":"x"}`, bad: "ts: is required"},
		{line: `{"ts":1,"S":"out","m":"x"}`, bad: "s: is required"},
		{line: `{"ts":"1","s":"out","m":"x"}`, bad: "ts: is not a whole number"},
		{line: `{"ts":1.5,"s":"out","m":"x"}`, bad: "ts: is not a whole number"},
		{line: `{"ts":01,"s":"out","m":"x"}`, bad: "not a JSON object"},
		{line: `{"ts":99999999999999999999,"s":"out","m":"x"}`, bad: "ts: is not within"},
		{line: `{"ts":1,"ts":2,"s":"out","m":"x"}`, bad: "ts: is there twice"},
		{line: `{"ts":1,"s":"out","m":"x","m":"y"}`, bad: "m: is there twice"},
		{line: `{"ts":1,"s":"out","m":"x","b":"eA=="}`, bad: "exactly one"},
		{line: `{"ts":1,"s":"out","m":"x","gap":1}`, bad: "exactly one"},
		{line: `{"ts":1,"s":"out","m":5}`, bad: "m: is not a string"},
		{line: `{"ts":1,"s":"out","m":"x","part":1}`, bad: "part: is not true or false"},
		{line: `{"ts":1,"s":"out","b":"!!"}`, bad: "b: is not padded"},
		{line: `{"ts":1,"s":"out","b":"/x=="}`, bad: "b: is not padded"},
		{line: `{"ts":1,"s":"out","b":"/w"}`, bad: "b: is not padded"},
		{line: "{\"ts\":1,\"s\":\"out\",\"b\":\"/w\r==\"}", bad: "not a JSON object"},
		{line: `{"gap":0}`, bad: "gap: is not within"},
		{line: `{"gap":-1}`, bad: "gap: is not within"},
		{line: `{"gap":1e3}`, bad: "gap: is not a whole number"},
		{line: `{"gap":9007199254740993}`, bad: "gap: is not within"},
		{line: "{\"ts\":1,\"s\":\"out\",\"m\":\"a\x01b\"}", bad: "not a JSON object"},
		{line: "{\"ts\":1,\"s\":\"out\",\"m\":\"a\tb, far from the end\"}", bad: "not a JSON object"},
		{line: "{\"ts\":1,\"s\":\"out\",\"m\":\"\xff\"}", bad: "UTF-8"},
		{line: "{\"ts\":1,\"s\":\"out\",\"m\":\"\xed\xa0\x80 a surrogate in UTF-8\"}", bad: "UTF-8"},
		{line: `{"ts":1,"s":"out","m":"\ud800"}`, bad: "half a surrogate"},
		{line: `{"ts":1,"s":"out","m":"\udc00\ud800"}`, bad: "half a surrogate"},
		{line: `{"ts":1,"s":"out","m":"\x41"}`, bad: "not a JSON object"},
		{line: `{"ts":1,"s":"out","m":"x"} {"gap":1}`, bad: "something follows"},
		{line: `{"ts":1,"s":"out","m":"x"`, bad: "ends within"},
	} {
		name := tc.line
		if len(name) > 60 {
			name = name[:60]
		}
		t.Run(name, func(t *testing.T) {
			var fast, slow record
			size := scanRecord([]byte(tc.line+"\n"), &fast)
			err := parseRecord([]byte(tc.line), &slow)
			if tc.bad != "" {
				if size != 0 {
					t.Errorf("scanRecord accepted %d bytes; want refusal", size)
				}
				if p, ok := errors.AsType[*problem](err); !ok || !strings.Contains(p.Detail, tc.bad) {
					t.Errorf("parseRecord: %v; want a fault with %q", err, tc.bad)
				}
				return
			}
			if err != nil {
				t.Fatalf("parseRecord: %v", err)
			}
			if got := mustContent(t, &slow); slow.kind != 'g' && got != tc.want {
				t.Errorf("parsed %q; want %q", got, tc.want)
			}
			if tc.fast != (size == len(tc.line)+1) {
				t.Fatalf("scanRecord took %d of %d bytes; want fast=%v", size, len(tc.line)+1, tc.fast)
			}
			if tc.fast {
				sameRecord(t, &fast, &slow)
			}
		})
	}
}

func sameRecord(t *testing.T, a, b *record) {
	t.Helper()
	if a.ts != b.ts || a.timed != b.timed || a.stream != b.stream || a.kind != b.kind || a.part != b.part || a.eof != b.eof || a.gap != b.gap || a.reason != b.reason {
		t.Fatalf("records differ: %+v and %+v", a, b)
	}
	if x, y := mustContent(t, a), mustContent(t, b); x != y {
		t.Fatalf("contents differ: %q and %q", x, y)
	}
}

// A special byte at every place of a word must be found there.
func TestScanStringFindsEveryPlace(t *testing.T) {
	for n := range 40 {
		for _, special := range []string{`"`, `\n`, "\x1f", "é"} {
			line := `{"ts":1,"s":"out","m":"` + strings.Repeat("~", n) + special + strings.Repeat("\x7f", 11) + `"}` + "\n"
			var r record
			size := scanRecord([]byte(line), &r)
			switch special {
			case `"`, "\x1f":
				if size != 0 {
					t.Errorf("%q at %d: accepted %d bytes", special, n, size)
				}
			default:
				if size != len(line) {
					t.Errorf("%q at %d: took %d of %d bytes", special, n, size, len(line))
				}
			}
		}
	}
}

// What goes through appendJSON comes back the same.
func TestRecordWrittenAgain(t *testing.T) {
	for _, line := range []string{
		`{"ts":5,"s":"out","m":"a\u00e9\"","part":true}`,
		`{"ts":5,"s":"err","b":"/wD+","eof":true}`,
		`{"ts":5,"s":"agent","gap":3,"reason":"a \"b\""}`,
		`{"gap":3}`,
	} {
		var a, b record
		if err := parseRecord([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		out := a.appendJSON(nil, 77)
		if !bytes.HasPrefix(out, []byte(`{"n":77,`)) {
			t.Errorf("%s: no number in %s", line, out)
		}
		if err := parseRecord(out, &b); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		sameRecord(t, &a, &b)
	}
}

func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		`{"ts":1732888888123456,"s":"out","m":"a line"}`, `{"ts":1,"s":"err","m":"first","part":true}`,
		`{"ts":1,"s":"out","b":"/wD+"}`, `{"ts":1,"s":"agent","gap":512,"reason":"spoolFull"}`,
		`{"ts":1,"s":"out","m":"q\"b\\s\u00e9","eof":true}`, `{"ts":1,"s":"out","m":"\ud83d\ude00"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.IndexByte(line, '\n') >= 0 {
			return
		}
		var fast, slow record
		size := scanRecord(append(bytes.Clone(line), '\n'), &fast)
		err := parseRecord(line, &slow)
		if size != 0 {
			if size != len(line)+1 || err != nil {
				t.Fatalf("scanRecord took %d of %d, parseRecord: %v", size, len(line)+1, err)
			}
			sameRecord(t, &fast, &slow)
		}
		if err == nil {
			var again record
			out := slow.appendJSON(nil, -1)
			if err := parseRecord(out, &again); err != nil {
				t.Fatalf("%s: written again as %s: %v", line, out, err)
			}
			sameRecord(t, &slow, &again)
		}
	})
}

func plainLines(n, width int) []byte {
	var b []byte
	for i := range n {
		b = fmt.Appendf(b, `{"ts":%d,"s":"out","m":"`, 1732888888000000+i*37)
		text := fmt.Sprintf("n=%d level=info msg=\"request served\" path=/api/v1/items/%d status=200 dur=%dus ", i, i*7919%1000, i*31%5000)
		text = strings.ReplaceAll(text+strings.Repeat("lorem ipsum dolor ", 12), `"`, `'`)[:width]
		b = append(append(b, text...), "\"}\n"...)
	}
	return b
}

func BenchmarkScanRecord(b *testing.B) {
	p := plainLines(1000, 200)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		var r record
		for rest := p; len(rest) > 0; {
			n := scanRecord(rest, &r)
			if n == 0 || r.stream != protocol.Stdout {
				b.Fatal("not canonical")
			}
			rest = rest[n:]
		}
	}
}
