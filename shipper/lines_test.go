package shipper

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
)

func TestHealthyLogArrives(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		r := start(t, v, config(t, v))
		l := r.open("a")
		text := numbered(1, 1000)
		r.print(l, protocol.Stdout, text)
		if n := l.Close(); n != 1000 {
			t.Errorf("Close says %d records, want 1000", n)
		}
		r.flush()
		r.want("a", text)
		if _, held := r.AttemptStats("a", 1); held {
			t.Error("the attempt is still held")
		}
		if used := r.Stats().MemoryUsed; used != 0 {
			t.Errorf("%d bytes of memory are in use, want 0", used)
		}
	})
}

func TestL12LastLineIsKept(t *testing.T) {
	for _, c := range []struct {
		text    string
		records int64
	}{{"", 0}, {"x", 1}, {"\n", 1}, {"a\nb", 2}, {"\n\n\n", 3}, {"a\r\nb\r\n", 2}} {
		bubble(t, func(t *testing.T) {
			v := newServer()
			r := start(t, v, config(t, v))
			l := r.open("a")
			r.print(l, protocol.Stdout, c.text)
			if n := l.Close(); n != c.records {
				t.Errorf("%q: %d records, want %d", c.text, n, c.records)
			}
			r.flush()
			r.want("a", c.text)
			if records := v.records(ref("a")); c.text == "x" && !records[0].EOF {
				t.Error("a last line without newline has no eof")
			}
		})
	}
}

func TestL10LongLinesAreByteExact(t *testing.T) {
	const k = 4 << 10
	bubble(t, func(t *testing.T) {
		v := newServer()
		r := start(t, v, config(t, v))
		l := r.open("a")
		var b strings.Builder
		for _, n := range []int{k - 1, k, k + 1, 2*k - 1, 2 * k, 64*k + 1, 256*k + 1, 0, 1} {
			b.WriteString(strings.Repeat("é€x", n/6+1)[:n] + "\n")
		}
		r.print(l, protocol.Stdout, b.String())
		l.Close()
		r.flush()
		r.want("a", b.String())
		for i, rec := range v.records(ref("a"))[:3] {
			if parts := []bool{false, false, true}; rec.Part != parts[i] {
				t.Errorf("record %d: part is %v, want %v: a line of exactly the longest length is whole", i, rec.Part, parts[i])
			}
		}
	})
}

func TestL9EndlessLineStaysBounded(t *testing.T) {
	size := 8 << 20
	if soak() {
		size = 300 << 20
	}
	bubble(t, func(t *testing.T) {
		v := newServer()
		r := start(t, v, config(t, v))
		l := r.open("a")
		long := strings.Repeat("0123456789abcdef", size/16)
		text := long + "\n" + numbered(1, 10)
		r.print(l, protocol.Stdout, text)
		l.Close()
		r.flush()
		r.want("a", text)
		if used := r.Stats().MemoryUsed; used != 0 {
			t.Errorf("%d bytes are in use, want 0", used)
		}
	})
}

func TestL11AnyBytesAreByteExact(t *testing.T) {
	bubble(t, func(t *testing.T) {
		size := 1 << 20
		if soak() {
			size = 5 << 20
		}
		random := rand.New(rand.NewPCG(1, 2))
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		text := string(b) + "\n\xff\n\x00\n\xed\xa0\x80\n𝄞𝄞\n" + numbered(1, 3)
		v := newServer()
		r := start(t, v, config(t, v))
		l := r.open("a")
		r.print(l, protocol.Stdout, text)
		l.Close()
		r.flush()
		r.want("a", text)
	})
}

// A four-byte rune, cut at every place where a read can end, with time to be shipped as a part in between.
func TestL11RuneCutByReads(t *testing.T) {
	for cut := 1; cut < 8; cut++ {
		bubble(t, func(t *testing.T) {
			v := newServer()
			r := start(t, v, config(t, v))
			l := r.open("a")
			const text = "𝄞𝄞"
			if err := l.write(streamOut, []byte(text[:cut])); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			if err := l.write(streamOut, []byte(text[cut:]+"\nnext\n")); err != nil {
				t.Fatal(err)
			}
			l.Close()
			r.flush()
			r.want("a", text+"\nnext\n")
			for _, rec := range v.records(ref("a")) {
				if rec.Bytes != nil && cut >= 4 {
					t.Errorf("cut at %d: a part was shipped as bytes: %q", cut, rec.Bytes)
				}
			}
		})
	}
}

// A line ships within a quarter of a second, a line's beginning within about one.
func TestSealTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		r := start(t, v, config(t, v))
		l := r.open("a")
		check := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			if got := v.text(ref("a"), protocol.Stdout); got != want {
				t.Errorf("server has %q, want %q", got, want)
			}
		}
		if err := l.write(streamOut, []byte("line\n..")); err != nil {
			t.Fatal(err)
		}
		check(sealAge-10*time.Millisecond, "")
		check(20*time.Millisecond, "line\n")
		check(lineAge, "line\n..")
		if err := l.write(streamOut, []byte(".")); err != nil {
			t.Fatal(err)
		}
		check(sealAge+lineAge+10*time.Millisecond, "line\n...")
		if err := l.write(streamOut, []byte("\n")); err != nil {
			t.Fatal(err)
		}
		check(sealAge+10*time.Millisecond, "line\n...\n")
		if n := l.Close(); n != 4 {
			t.Errorf("%d records, want 4", n)
		}
	})
}

func TestStreamsShareNumbersInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		r := start(t, v, config(t, v))
		l := r.open("a")
		for i := range 20 {
			which := i % 2
			if err := l.write(which, fmt.Appendf(nil, "n=%d\n", i)); err != nil {
				t.Fatal(err)
			}
			if i == 10 {
				l.Remark("the agent says\ntwo lines")
			}
			time.Sleep(time.Millisecond)
		}
		if n := l.Close(); n != 22 {
			t.Errorf("%d records, want 22", n)
		}
		r.flush()
		var got []string
		for _, rec := range v.records(ref("a")) {
			got = append(got, string(rec.Stream)+" "+rec.Text)
		}
		want := "out n=0 err n=1 out n=2 err n=3 out n=4 err n=5 out n=6 err n=7 out n=8 err n=9 out n=10 agent the agent says agent two lines err n=11"
		if s := strings.Join(got, " "); !strings.HasPrefix(s, want) {
			t.Errorf("records are %q, want %q…", s, want)
		}
	})
}
