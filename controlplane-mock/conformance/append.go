package conformance

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

const (
	secLogs = "Logs"
	secShip = "`POST /agent/v1/jobs/{id}/attempts/{n}/logs?first=1200&count=400`"
	secNext = "`GET /agent/v1/jobs/{id}/attempts/{n}/logs/next`"
)

var appendChecks = []Check{
	{"logs/append", secShip, []string{"Below `next` the server drops what it has (a gap that straddles `next` is trimmed), at `next` it appends"}, appendAtNext, 0},
	{"logs/next", secNext, []string{"Same token header → `200 {\"next\":1600}`."}, logNext, 0},
	{"logs/lease-token", secShip, []string{"| `Agentd-Lease-Token` | the attempt's; without it `404` |"}, logToken, 0},
	{"logs/digest", secShip, []string{"over the body as sent; required. One that can't be read is `400 invalid`, one that doesn't match `400 corrupt` |"}, logDigest, 0},
	{"logs/encodings", secShip, []string{"Every server takes `zstd`, `gzip` and `identity`, and may offer `snappy` (the *framing* format)."}, logEncodings, 0},
	{"logs/encodings-offered", secShip, []string{"| `Content-Encoding` | `zstd`, `gzip`, `identity`, or `snappy` where the link's `logEncodings` offers it |"}, logEncodingsOffered, 0},
	{"logs/several-frames", secShip, []string{"A body may be several frames one after the other, which all three formats allow: a batch that was sealed once is shipped as it is."}, logFrames, 0},
	{"logs/undecodable", secShip, []string{"A `count` that is wrong is `corrupt`."}, logCorrupt, 0},
	{"logs/count-zero", secShip, []string{"With `count=0` and an empty body the answer is just `next`, whatever `first` is."}, logCountZero, 0},
	{"logs/first-and-count", secShip, []string{"`first` is the number of the first record, `count` how many numbers the body covers"}, logQuery, 0},
	{"logs/twice", secShip, []string{"So a batch sent twice is harmless"}, logTwice, 0},
	{"logs/overlap", secShip, []string{"Below `next` the server drops what it has"}, logOverlap, 0},
	{"logs/overlap-gap", secShip, []string{"(a gap that straddles `next` is trimmed)"}, logOverlapGap, 0},
	{"logs/gap", secShip, []string{"above it answers `409 log_gap` with its `next`."}, logAbove, 0},
	{"logs/whole-or-not", secShip, []string{"A body is stored whole or not at all."}, logWhole, 0},
	{"logs/final", secShip, []string{"`final=1` says that the log ends with this batch: it sets `logRecords` to `first` + `count`, whatever `next` is."}, logFinal, 0},
	{"logs/final-alone", secShip, []string{"It is for attempts that end without a completion, and may come alone with `count=0`."}, logFinalAlone, 0},
}

// pack encodes a body as one frame.
func pack(p *probe, encoding string, body []byte) []byte {
	var b bytes.Buffer
	var err error
	switch encoding {
	case "identity":
		return body
	case "gzip":
		w := gzip.NewWriter(&b)
		_, err = w.Write(body)
		w.Close() //nolint:errcheck // writes to memory
	case "snappy":
		w := snappy.NewBufferedWriter(&b)
		_, err = w.Write(body)
		w.Close() //nolint:errcheck // writes to memory
	case "zstd":
		w, newErr := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
		if newErr != nil {
			p.failf("zstd: %v", newErr)
		}
		_, err = w.Write(body)
		w.Close() //nolint:errcheck // writes to memory
	default:
		p.failf("nothing is known of the encoding %q", encoding)
	}
	p.assert(err == nil, "%s: %v", encoding, err)
	return b.Bytes()
}

// offered are the encodings that a server takes, and that the suite knows.
func (a *agent) offered() []string {
	all := []string{"identity"}
	for _, e := range a.link.strs("logEncodings") {
		if e == "zstd" || e == "gzip" || e == "snappy" {
			all = append(all, e)
		}
	}
	return all
}

// taken is a new agent with an offer, whose log may be written.
func (p *probe) taken() (*agent, lease) {
	a := p.agent()
	p.submit(nil)
	return a, a.take()
}

// append ships lines first…first+n−1 and expects the answer.
func (a *agent) append(l lease, first, n, next int) {
	got := a.ship(l, batch{first: int64(first), count: int64(n), body: lines(first, n)}).must(200).int("next")
	a.p.assert(got == int64(next), "records %d to %d were answered with next %d; want %d", first, first+n-1, got, next)
}

// holds checks what a log reads as.
func (p *probe) holds(l lease, want string) {
	got := p.text(l.job, fmt.Sprintf("?attempt=%d", l.attempt))
	if got != want {
		p.failf("the log reads %s; want %s", clip(got), clip(want))
	}
}

func clip(s string) string {
	if len(s) > 400 {
		return fmt.Sprintf("%q… (%d bytes)", s[:400], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// numbered is what lines 0…n−1 read as.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "n=%d\n", i)
	}
	return b.String()
}

func appendAtNext(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 3, 3)
	a.append(l, 3, 1, 4)
	a.append(l, 4, 500, 504)
	p.holds(l, numbered(504))
}

func logNext(p *probe) {
	a, l := p.taken()
	p.assert(a.next(l) == 0, "next is %d of an empty log; want 0", a.next(l))
	a.append(l, 0, 5, 5)
	p.assert(a.next(l) == 5, "next is %d; want 5", a.next(l))
	p.agentCall("GET", l.logs()+"/next", a.apiKey, nil).refused(404, "not_found")
}

func logToken(p *probe) {
	a, l := p.taken()
	a.ship(l, batch{count: 1, body: lines(0, 1), token: "none"}).refused(404, "not_found")
	a.append(l, 0, 1, 1)
}

func logDigest(p *probe) {
	a, l := p.taken()
	body := lines(0, 1)
	for _, digest := range []string{"none", "sha-256=x", "sha-256=:x:", "sha-256=" + digestOf(body)[9:], "md5=:AAAA:", "sha-256=:AAAA:"} {
		a.ship(l, batch{count: 1, body: body, digest: digest}).refused(400, "invalid")
	}
	a.ship(l, batch{count: 1, body: body, digest: digestOf([]byte("another"))}).refused(400, "corrupt")
	// Over the body as sent, not as it decodes.
	packed := pack(p, "gzip", body)
	a.ship(l, batch{count: 1, body: packed, encoding: "gzip", digest: digestOf(body)}).refused(400, "corrupt")
	p.assert(a.next(l) == 0, "next is %d after bodies that were refused; want 0", a.next(l))
	a.ship(l, batch{count: 1, body: packed, encoding: "gzip", digest: "sha-512=:AAAA:, " + digestOf(packed)}).must(200)
}

func logEncodings(p *probe) {
	a, l := p.taken()
	n := 0
	for _, e := range a.offered() {
		a.ship(l, batch{first: int64(n), count: 50, body: pack(p, e, lines(n, 50)), encoding: e}).must(200)
		n += 50
	}
	for _, must := range []string{"zstd", "gzip", "identity"} {
		a.ship(l, batch{first: int64(n), count: 1, body: pack(p, must, lines(n, 1)), encoding: must}).must(200)
		n++
	}
	p.holds(l, numbered(n))
}

func logEncodingsOffered(p *probe) {
	a, l := p.taken()
	refuse := []string{"br", "deflate", "x-unknown"}
	if !strings.Contains(strings.Join(a.offered(), " "), "snappy") {
		refuse = append(refuse, "snappy")
	}
	for _, e := range refuse {
		a.ship(l, batch{count: 1, body: lines(0, 1), encoding: e}).refused(415, "invalid")
	}
	p.assert(a.next(l) == 0, "next is %d; want 0", a.next(l))
}

func logFrames(p *probe) {
	a, l := p.taken()
	n := 0
	for _, e := range a.offered() {
		var body []byte
		for i := range 4 {
			body = append(body, pack(p, e, lines(n+5*i, 5))...)
		}
		a.ship(l, batch{first: int64(n), count: 20, body: body, encoding: e}).must(200)
		n += 20
	}
	p.holds(l, numbered(n))
}

func logCorrupt(p *probe) {
	a, l := p.taken()
	body := lines(0, 3)
	for _, count := range []int64{1, 2, 4, 1000} {
		a.ship(l, batch{count: count, body: body}).refused(400, "corrupt")
	}
	a.ship(l, batch{count: 1}).refused(400, "corrupt")
	a.ship(l, batch{count: 0, body: body}).refused(400, "corrupt")
	for _, e := range []string{"zstd", "gzip"} {
		a.ship(l, batch{count: 3, body: body, encoding: e}).refused(400, "corrupt")
		packed := pack(p, e, body)
		a.ship(l, batch{count: 3, body: packed[:len(packed)-3], encoding: e}).refused(400, "corrupt")
	}
	p.assert(a.next(l) == 0, "next is %d after bodies that were refused; want 0", a.next(l))
}

func logCountZero(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 4, 4)
	for _, first := range []int64{0, 4, 900} {
		got := a.ship(l, batch{first: first}).must(200).int("next")
		p.assert(got == 4, "count=0 with first=%d is answered with next %d; want 4", first, got)
	}
	a.ship(l, batch{body: pack(p, "gzip", nil), encoding: "gzip"}).must(200)
}

func logQuery(p *probe) {
	a, l := p.taken()
	for _, q := range []string{"", "?first=0", "?count=1", "?first=-1&count=1", "?first=0&count=-1", "?first=x&count=1", "?first=0&count=1.5", "?first=0&count=1&final=maybe"} {
		body := lines(0, 1)
		p.agentCall("POST", l.logs()+q, a.apiKey, body, "Content-Type: application/x-ndjson", "Content-Digest: "+digestOf(body), "Agentd-Lease-Token: "+l.token).refused(400, "invalid")
	}
	p.assert(a.next(l) == 0, "next is %d; want 0", a.next(l))
}

func logTwice(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 10, 10)
	a.append(l, 0, 10, 10)
	a.append(l, 3, 4, 10)
	p.holds(l, numbered(10))
}

func logOverlap(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 10, 10)
	a.append(l, 5, 10, 15)
	for i, e := range a.offered() {
		first := 15 + 5*i
		got := a.ship(l, batch{first: int64(first - 5), count: 10, body: append(pack(p, e, lines(first-5, 3)), pack(p, e, lines(first-2, 7))...), encoding: e}).must(200).int("next")
		p.assert(got == int64(first+5), "%s: next is %d; want %d", e, got, first+5)
	}
	p.holds(l, numbered(15+5*len(a.offered())))
}

func logOverlapGap(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 10, 10)
	body := []byte(`{"ts":7,"s":"agent","gap":20,"reason":"spoolFull"}` + "\n" + out("after"))
	got := a.ship(l, batch{first: 5, count: 21, body: body}).must(200).int("next")
	p.assert(got == 26, "next is %d after records 5 to 25; want 26", got)
	var gap, after bool
	for _, r := range p.records(l) {
		switch r.int("n") {
		case 10:
			gap = r.int("gap") == 15 && r.str("reason") == "spoolFull"
		case 25:
			after = r.str("m") == "after"
		}
	}
	p.assert(gap, "want a gap of 15 at record 10, trimmed from one of 20 at 5: %s", p.text(l.job, "?format=ndjson&from=9"))
	p.assert(after, "want the record behind the gap at 25: %s", p.text(l.job, "?format=ndjson&from=9"))
}

func logAbove(p *probe) {
	a, l := p.taken()
	for _, next := range []int64{0, 4} {
		r := a.ship(l, batch{first: next + 1, count: 1, body: lines(0, 1)}).refused(409, "log_gap")
		p.assert(r.fields().int("next") == next, "log_gap has next %d; want %d", r.fields().int("next"), next)
		p.assert(a.next(l) == next, "next is %d after a batch above it; want %d", a.next(l), next)
		if next == 0 {
			a.append(l, 0, 4, 4)
		}
	}
	a.append(l, 4, 1, 5)
	p.holds(l, numbered(5))
}

func logWhole(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 2, 2)
	body := append(lines(2, 5), "{\"ts\":1,\"s\":\"out\"}\n"...)
	a.ship(l, batch{first: 2, count: 6, body: body}).refused(400, "invalid")
	a.ship(l, batch{first: 0, count: 8, body: append(lines(0, 2), body...)}).refused(400, "invalid")
	p.assert(a.next(l) == 2, "next is %d after a body of which one record was refused; want 2", a.next(l))
	p.holds(l, numbered(2))
}

func logFinal(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 2, 2)
	a.ship(l, batch{first: 2, count: 3, body: lines(2, 3), final: true}).must(200)
	t := p.attempt(l.job, l.attempt)
	p.assert(!t.null("logRecords") && t.int("logRecords") == 5 && t.bool("logsComplete"), "logRecords is %s and logsComplete %v after a last batch of records 2 to 4; want 5 and true", t.raw["logRecords"], t.bool("logsComplete"))
}

func logFinalAlone(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	a.append(l, 0, 2, 2)
	p.lapse(l)
	got := a.ship(l, batch{first: 6, final: true}).must(200).int("next")
	p.assert(got == 2, "next is %d; want 2", got)
	t := p.attempt(l.job, l.attempt)
	p.assert(!t.null("logRecords") && t.int("logRecords") == 6 && !t.bool("logsComplete"), "logRecords is %s and logsComplete %v; want 6 and false", t.raw["logRecords"], t.bool("logsComplete"))
	a.append(l, 2, 4, 6)
	p.assert(p.attempt(l.job, l.attempt).bool("logsComplete"), "the log isn't complete with its last record stored")
}
