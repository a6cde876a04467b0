package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

var recordChecks = []Check{
	{"logs/records", secLogs, []string{"The log of an attempt is a sequence of records with dense numbers from 0.", "A record is a line of output, or a piece of a line that is too long."}, recordsRead, 0},
	{"logs/record-members", secShip, []string{"| `m` or `b` or `gap` | the line without its newline; or its bytes where they are not UTF-8; or how many (≥ 1) records are missing here. Exactly one of them |"}, recordMembers, 0},
	{"logs/record-required", secShip, []string{"| `ts` | microseconds since the epoch; required but for a gap |", "| `s` | `out`, `err`, or `agent` for the agent's own remarks; required but for a gap |"}, recordRequired, 0},
	{"logs/record-bytes", secShip, []string{"or its bytes where they are not UTF-8"}, recordBytes, 0},
	{"logs/record-part-eof", secShip, []string{"| `part` | the line goes on in the same stream's next record |", "| `eof` | the stream ended here without a newline |"}, recordParts, 0},
	{"logs/record-gap", secShip, []string{"one per record, and as many as it says for a gap.", "| `reason` | of a gap: `spoolFull`, `deadLetter`, `damaged`, … |"}, recordGap, 0},
	{"logs/record-gap-bare", secShip, []string{"A gap without `ts` and `s` reads back with the time it was stored, and `agent`."}, recordGapBare, 0},
	{"logs/record-dead-letter", secShip, []string{"A record that had to be dead-lettered is shipped as `{\"gap\":1,\"reason\":\"deadLetter\"}`."}, recordDeadLetter, 0},
}

type jsonRaw = json.RawMessage

// records reads a log with its numbers.
func (p *probe) records(l lease) []fields {
	var all []fields
	for line := range strings.Lines(p.text(l.job, fmt.Sprintf("?format=ndjson&attempt=%d", l.attempt))) {
		f := fields{p: p, where: "a line of the log"}
		if err := json.Unmarshal([]byte(line), &f.raw); err != nil {
			p.failf("the ndjson log has the line %q: %v", line, err)
		}
		all = append(all, f)
	}
	return all
}

// shipAll ships raw records as one batch.
func (a *agent) shipAll(l lease, first, count int64, records ...string) reply {
	return a.ship(l, batch{first: first, count: count, body: []byte(strings.Join(records, "\n") + "\n")})
}

func recordsRead(p *probe) {
	a, l := p.taken()
	sent := []string{
		`{"ts":1732888888123456,"s":"out","m":"a line"}`,
		`{"ts":1732888888123460,"s":"err","m":"first of a long line","part":true}`,
		`{"ts":1732888888123461,"s":"err","m":"its end"}`,
		`{"ts":1732888888123470,"s":"out","b":"//4AYQ=="}`,
		`{"ts":1732888888123475,"s":"out","m":"quote \" backslash \\ tab \t ü 😀 \u0001","eof":true}`,
		`{"ts":1732888888123480,"s":"agent","gap":512,"reason":"spoolFull"}`,
		`{"ts":1732888888123490,"s":"agent","m":"a remark"}`,
	}
	a.shipAll(l, 0, 518, sent...).must(200)
	n := []int64{0, 1, 2, 3, 4, 5, 517}
	got := p.records(l)
	p.assert(len(got) == len(sent), "%d records read back; want %d", len(got), len(sent))
	for i, f := range got {
		p.assert(f.int("n") == n[i], "record %d has the number %d; want %d", i, f.int("n"), n[i])
		delete(f.raw, "n")
		raw, err := json.Marshal(f.raw)
		p.assert(err == nil && sameJSON(raw, []byte(sent[i])), "%s reads back as %s", sent[i], raw)
	}
}

func recordMembers(p *probe) {
	a, l := p.taken()
	for _, r := range []string{
		`{"ts":1,"s":"out"}`, `{"ts":1,"s":"out","m":"x","b":"eA=="}`, `{"ts":1,"s":"agent","gap":1,"m":"x"}`, `{"ts":1,"s":"agent","gap":1,"b":"eA=="}`,
		`{"ts":1,"s":"agent","gap":0}`, `{"ts":1,"s":"agent","gap":-1}`, `{"ts":1,"s":"out","m":5}`, `{"ts":1,"s":"out","b":"eA"}`, `{"ts":1,"s":"out","M":"x"}`,
		`{"ts":1,"s":"out","m":"x","part":"yes"}`, `["x"]`, `"x"`, `x`, ``,
	} {
		got := a.shipAll(l, 0, 1, r)
		p.assert(got.status == 400 && (got.code() == "invalid" || r == "" && got.code() == "corrupt"), "the record %s: %v; want 400 invalid", r, got)
	}
	p.assert(a.next(l) == 0, "next is %d; want 0", a.next(l))
}

func recordRequired(p *probe) {
	a, l := p.taken()
	for _, r := range []string{
		`{"s":"out","m":"x"}`, `{"ts":1,"m":"x"}`, `{"ts":"1","s":"out","m":"x"}`, `{"ts":1.5,"s":"out","m":"x"}`, `{"ts":1,"s":"stdout","m":"x"}`,
		`{"ts":1,"s":"","m":"x"}`, `{"ts":1,"s":"out","m":null}`,
	} {
		a.shipAll(l, 0, 1, r).refused(400, "invalid")
	}
	a.shipAll(l, 0, 1, `{"ts":1,"s":"out","m":""}`).must(200)
}

func recordBytes(p *probe) {
	a, l := p.taken()
	a.shipAll(l, 0, 2, `{"ts":1,"s":"out","b":"//4AYQ=="}`, `{"ts":1,"s":"out","m":"next"}`).must(200)
	p.holds(l, "\xff\xfe\x00a\nnext\n")
	a.ship(l, batch{first: 2, count: 1, body: []byte("{\"ts\":1,\"s\":\"out\",\"m\":\"\xff\"}\n")}).refused(400, "invalid")
	a.shipAll(l, 2, 1, `{"ts":1,"s":"out","m":"\ud800"}`).refused(400, "invalid")
}

func recordParts(p *probe) {
	a, l := p.taken()
	a.shipAll(l, 0, 6,
		`{"ts":1,"s":"out","m":"one ","part":true}`, `{"ts":1,"s":"err","m":"ERR"}`, `{"ts":1,"s":"out","m":"line ","part":true}`, `{"ts":1,"s":"out","m":"joined"}`,
		`{"ts":1,"s":"out","m":"a second"}`, `{"ts":1,"s":"out","m":"no newline","eof":true}`).must(200)
	got := p.text(l.job, "")
	p.assert(strings.Contains(got, "one line joined\n"), "the parts of a line read %q; want them joined", got)
	p.assert(strings.Contains(got, "ERR\n") && !strings.Contains(got, "one ERR"), "another stream's line stands within a line: %q", got)
	p.assert(strings.HasSuffix(got, "no newline"), "a last line without newline reads %q; want none added", got)
}

func recordGap(p *probe) {
	a, l := p.taken()
	got := a.shipAll(l, 0, 10, `{"ts":1,"s":"out","m":"before"}`, `{"ts":1,"s":"agent","gap":8,"reason":"damaged"}`, `{"ts":1,"s":"out","m":"after"}`).must(200).int("next")
	p.assert(got == 10, "next is %d after two lines and a gap of 8; want 10", got)
	all := p.records(l)
	p.assert(len(all) == 3 && all[1].int("gap") == 8 && all[1].str("reason") == "damaged" && all[2].int("n") == 9, "the log reads %s", p.text(l.job, "?format=ndjson"))
	text := p.text(l.job, "")
	rows := strings.Split(text, "\n")
	p.assert(len(rows) == 4 && rows[0] == "before" && rows[2] == "after" && strings.Contains(rows[1], "8"), "the log reads %q; want a line of its own for the gap of 8", text)
}

func recordGapBare(p *probe) {
	a, l := p.taken()
	a.shipAll(l, 0, 3, `{"gap":3}`).must(200)
	seen := p.adminCall("GET", "agents/"+a.id, nil).must(200).time("lastSeenAt")
	f := p.records(l)[0]
	p.assert(f.str("s") == "agent", "s is %q; want agent", f.str("s"))
	// Both stamps are the server's.
	off := time.UnixMicro(f.int("ts")).Sub(seen)
	p.assert(off > -10*time.Minute && off < 10*time.Minute, "ts is %v; the batch was stored at about %v", time.UnixMicro(f.int("ts")).UTC(), seen)
}

func recordDeadLetter(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 1, 1)
	a.shipAll(l, 1, 1, `{"gap":1,"reason":"deadLetter"}`).must(200)
	f := p.records(l)[1]
	p.assert(f.int("gap") == 1 && f.str("reason") == "deadLetter", "it reads back as %s", f.raw)
}

var lateChecks = []Check{
	{"logs/after-lease-lost", secShip, []string{"Logs are taken after the lease was lost"}, logAfterLost, 0},
	{"logs/after-completion", secShip, []string{"after the completion, and past `logRecords`: they belong to the attempt, and its lease token stays good for them."}, logAfterCompletion, 0},
	{"logs/of-two-attempts", secShip, []string{"they belong to the attempt"}, logOfTwoAttempts, 0},
}

func logAfterLost(p *probe) {
	a, b := p.agent(), p.agent()
	p.submit(nil)
	l := a.start()
	a.append(l, 0, 2, 2)
	p.lapse(l)
	a.append(l, 2, 2, 4)
	m := b.start()
	p.assert(m.job == l.job, "the job wasn't given on")
	a.append(l, 4, 2, 6)
	p.assert(a.next(l) == 6, "next is %d; want 6", a.next(l))
	p.holds(l, numbered(6))
}

func logAfterCompletion(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	a.complete(l, "succeeded", 3).must(200)
	a.append(l, 0, 3, 3)
	a.append(l, 3, 2, 5)
	p.holds(l, numbered(5))
}

func logOfTwoAttempts(p *probe) {
	a := p.agent()
	p.submit(map[string]any{"retryOn": []string{"failed"}})
	l := a.start()
	a.shipAll(l, 0, 1, `{"ts":1,"s":"out","m":"of the first"}`).must(200)
	a.complete(l, "failed", 1).must(200)
	m := a.start()
	p.assert(a.next(m) == 0, "the second attempt's log begins with next %d; want 0", a.next(m))
	a.shipAll(m, 0, 1, `{"ts":1,"s":"out","m":"of the second"}`).must(200)
	p.holds(l, "of the first\n")
	p.holds(m, "of the second\n")
}
