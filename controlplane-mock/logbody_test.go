package controlplane

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

var testLimits = decodeLimits{decoded: 32 << 20, record: 1 << 20, codecs: newCodecs()}

func encode(t testing.TB, encoding string, plain []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	switch encoding {
	case encIdentity:
		return plain
	case encGzip:
		w = gzip.NewWriter(&buf)
	case encSnappy:
		w = snappy.NewBufferedWriter(&buf)
	case encZstd:
		z, err := zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			t.Fatal(err)
		}
		w = z
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

var allEncodings = []string{encIdentity, encGzip, encZstd, encSnappy}

func TestBodyOfSeveralFrames(t *testing.T) {
	for _, enc := range allEncodings {
		t.Run(enc, func(t *testing.T) {
			var body, plain []byte
			for range 5 {
				part := plainLines(700, 150)
				plain = append(plain, part...)
				body = append(body, encode(t, enc, part)...)
			}
			var got []byte
			decoded, err := walk(enc, body, testLimits, func(line []byte, _ *record) error {
				got = append(append(got, line...), '\n')
				return nil
			})
			if err != nil || decoded != int64(len(plain)) || !bytes.Equal(got, plain) {
				t.Fatalf("decoded %d of %d bytes, equal=%v, err=%v", decoded, len(plain), bytes.Equal(got, plain), err)
			}
			if _, err := checkBody(enc, body, 3500, testLimits); err != nil {
				t.Errorf("count 3500: %v", err)
			}
			for _, wrong := range []int64{0, 3499, 3501} {
				_, err := checkBody(enc, body, wrong, testLimits)
				wantCode(t, fmt.Sprintf("count %d", wrong), err, protocol.CodeCorrupt)
			}
		})
	}
}

func wantCode(t *testing.T, what string, err error, want protocol.Code) {
	t.Helper()
	p, ok := errors.AsType[*problem](err)
	if !ok || p.Code != want {
		t.Errorf("%s: %v; want code %s", what, err, want)
	}
}

// Every cut and every flipped byte of an encoded body is noticed, or changes nothing that was said.
func TestDamagedBody(t *testing.T) {
	plain := plainLines(50, 100)
	for _, enc := range []string{encGzip, encZstd, encSnappy} {
		t.Run(enc, func(t *testing.T) {
			body := encode(t, enc, plain)
			for cut := 1; cut < len(body); cut += 3 {
				if _, err := checkBody(enc, body[:cut], 50, testLimits); err == nil {
					t.Errorf("cut to %d of %d bytes: accepted", cut, len(body))
				}
			}
			for i := 0; i < len(body); i += 3 {
				damaged := bytes.Clone(body)
				damaged[i] ^= 0x10
				_, err := checkBody(enc, damaged, 50, testLimits)
				if p, ok := errors.AsType[*problem](err); err != nil && (!ok || p.Status >= 500) {
					t.Errorf("byte %d: %v; want a problem with the body", i, err)
				}
			}
		})
	}
}

// A body may claim to become anything: what is decoded is bounded, and so is the memory for it.
func TestBombs(t *testing.T) {
	bomb := append(bytes.Repeat([]byte(outLine("x")), 1<<17), "x"...)
	oneLine := bytes.Repeat([]byte("a"), 3<<20)
	for _, enc := range []string{encGzip, encZstd, encSnappy} {
		body := encode(t, enc, bomb)
		_, err := checkBody(enc, body, 1<<40, decodeLimits{decoded: 1 << 20, record: 1 << 20, codecs: newCodecs()})
		wantCode(t, enc+": 3 MiB within 1 MiB", err, protocol.CodeTooLarge)
		_, err = checkBody(enc, encode(t, enc, oneLine), 1, testLimits)
		wantCode(t, enc+": a record of 3 MiB", err, protocol.CodeTooLarge)
	}
}

func TestRecordLimit(t *testing.T) {
	line := func(size int) []byte {
		const frame = len(`{"ts":1,"s":"out","m":""}`)
		return fmt.Appendf(nil, "{\"ts\":1,\"s\":\"out\",\"m\":\"%s\"}\n", strings.Repeat("x", size-frame))
	}
	for _, slow := range []bool{false, true} {
		for _, tc := range []struct {
			size int
			ok   bool
		}{{1 << 20, true}, {1<<20 + 1, false}, {3 << 20, false}} {
			body := line(tc.size)
			if slow {
				body = append([]byte(" "), line(tc.size-1)...)
			}
			_, err := checkBody(encIdentity, body, 1, testLimits)
			if tc.ok && err != nil {
				t.Errorf("%d bytes, slow=%v: %v", tc.size, slow, err)
			} else if !tc.ok {
				wantCode(t, fmt.Sprintf("%d bytes, slow=%v", tc.size, slow), err, protocol.CodeTooLarge)
			}
		}
	}
}

func TestBodyFaults(t *testing.T) {
	good := `{"ts":1,"s":"out","m":"x"}` + "\n"
	for _, tc := range []struct {
		name, body string
		count      int64
		want       protocol.Code
		detail     string
	}{
		{"no newline at the end", good + `{"ts":1,"s":"out","m":"y"}`, 2, "", ""},
		{"crlf", strings.ReplaceAll(good, "\n", "\r\n"), 1, "", ""},
		{"empty", "", 0, "", ""},
		{"empty, count 1", "", 1, protocol.CodeCorrupt, "count"},
		{"blank line", good + "\n" + good, 2, protocol.CodeInvalid, "record 1 of the body"},
		{"not JSON", good + "hello\n", 2, protocol.CodeInvalid, "record 1 of the body"},
		{"bad field", good + good + `{"ts":1,"s":"up","m":"x"}`, 3, protocol.CodeInvalid, "record 2 of the body: s:"},
		{"gaps that overflow", strings.Repeat(`{"gap":9007199254740991}`+"\n", 2000), 5, protocol.CodeCorrupt, "count"},
		{"gap", `{"gap":41}` + "\n" + good, 42, "", ""},
	} {
		_, err := checkBody(encIdentity, []byte(tc.body), tc.count, testLimits)
		if tc.want == "" {
			if err != nil {
				t.Errorf("%s: %v; want it accepted", tc.name, err)
			}
			continue
		}
		wantCode(t, tc.name, err, tc.want)
		if p, ok := errors.AsType[*problem](err); ok && !strings.Contains(p.Detail, tc.detail) {
			t.Errorf("%s: detail %q; want %q in it", tc.name, p.Detail, tc.detail)
		}
	}
	_, err := checkBody(encSnappy, []byte("\xff\x06\x00\x00S2sTwO"), 1, testLimits)
	wantCode(t, "s2 is not snappy", err, protocol.CodeCorrupt)
	_, err = checkBody(encZstd, []byte("plain"), 1, testLimits)
	wantCode(t, "plain is not zstd", err, protocol.CodeCorrupt)
}

// Wherever a batch is cut, what is left says exactly what it said of those numbers.
func TestTrimAtEveryNumber(t *testing.T) {
	plain := []byte(`{"ts":1,"s":"out","m":"a"}
{"ts":2,"s":"agent","gap":4,"reason":"spoolFull"}
{"ts":3,"s":"err","b":"/w=="}
{"gap":2}
{"ts":4,"s":"out","m":"z","eof":true}
`)
	want := map[int64]string{
		1: `{"ts":2,"s":"agent","gap":4,"reason":"spoolFull"}`, 2: `{"ts":2,"s":"agent","gap":3,"reason":"spoolFull"}`,
		3: `{"ts":2,"s":"agent","gap":2,"reason":"spoolFull"}`, 4: `{"ts":2,"s":"agent","gap":1,"reason":"spoolFull"}`,
		5: `{"ts":3,"s":"err","b":"/w=="}`, 6: `{"gap":2}`, 7: `{"gap":1}`, 8: `{"ts":4,"s":"out","m":"z","eof":true}`,
	}
	for _, enc := range allEncodings {
		for off := int64(1); off < 9; off++ {
			b := store.LogBatch{First: 100, Count: 9, Final: true, Encoding: enc, Body: encode(t, enc, plain), Decoded: int64(len(plain))}
			cut, err := trimBatch(b, 100+off, testLimits)
			if err != nil {
				t.Fatal(err)
			}
			if cut.First != 100+off || cut.Count != 9-off || !cut.Final {
				t.Errorf("cut at %d: first %d, count %d, final %v", off, cut.First, cut.Count, cut.Final)
			}
			if _, err := checkBody(cut.Encoding, cut.Body, cut.Count, testLimits); err != nil {
				t.Errorf("cut at %d: %v", off, err)
			}
			var first string
			_, err = walk(cut.Encoding, cut.Body, testLimits, func(line []byte, _ *record) error {
				if first == "" {
					first = string(line)
				}
				return nil
			})
			if err != nil || first != want[off] {
				t.Errorf("cut at %d: begins with %s (%v); want %s", off, first, err, want[off])
			}
		}
	}
}

func FuzzLogBody(f *testing.F) {
	plain := plainLines(3, 60)
	for i, enc := range allEncodings {
		f.Add(uint8(i), encode(f, enc, plain), int64(3))
	}
	f.Add(uint8(0), []byte(`{"gap":7}`), int64(7))
	lim := decodeLimits{decoded: 1 << 20, record: 1 << 16, codecs: newCodecs()}
	f.Fuzz(func(t *testing.T, encoding uint8, body []byte, count int64) {
		enc := allEncodings[int(encoding)%len(allEncodings)]
		decoded, err := checkBody(enc, body, count, lim)
		if err != nil {
			if p, ok := errors.AsType[*problem](err); !ok || p.Status >= 500 {
				t.Fatalf("%v: not a client's fault", err)
			}
			return
		}
		if decoded > lim.decoded {
			t.Fatalf("decoded %d bytes", decoded)
		}
		if count < 2 || count > maxWireInt/2 {
			return
		}
		cut, err := trimBatch(store.LogBatch{First: 0, Count: count, Encoding: enc, Body: body, Decoded: decoded}, count/2, lim)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := checkBody(cut.Encoding, cut.Body, count-count/2, decodeLimits{decoded: 4 << 20, record: 1 << 18, codecs: lim.codecs}); err != nil {
			t.Fatalf("what was trimmed: %v", err)
		}
	})
}

// BenchmarkLogBody is what the server does with a body before it stores it: digest, decode, check. MB/s of decoded bytes.
func BenchmarkLogBody(b *testing.B) {
	const lines = 16_000
	plain := plainLines(lines, 200)
	for _, enc := range allEncodings {
		b.Run(enc, func(b *testing.B) {
			body := encode(b, enc, plain)
			b.SetBytes(int64(len(plain)))
			b.ReportMetric(float64(len(body))/float64(len(plain)), "ratio")
			b.ReportAllocs()
			cpu := cpuTime(b)
			defer func() { b.ReportMetric((cpuTime(b)-cpu).Seconds()/(float64(b.N)*float64(len(plain))/1e9), "cpu-s/GB") }()
			for b.Loop() {
				sha256.Sum256(body)
				if _, err := checkBody(enc, body, lines, testLimits); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// cpuTime is what this process has used so far: unlike the wall's time it means the same on a busy machine.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
