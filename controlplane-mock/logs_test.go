package controlplane

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

func lines(first, n int) string {
	var b strings.Builder
	for i := first; i < first+n; i++ {
		b.WriteString(outLine(fmt.Sprintf("n=%d", i)))
	}
	return b.String()
}

func wantNext(t *testing.T, r reply, next int64) {
	t.Helper()
	r.want(t, 200, "")
	if want := fmt.Sprintf(`{"next":%d}`, next); string(r.body) != want {
		t.Fatalf("answered %s; want %s", r.body, want)
	}
}

func (e *env) text(job, query string) string {
	e.t.Helper()
	return string(e.admin("GET", "jobs/"+job+"/logs"+query, nil).want(e.t, 200, "").body)
}

func TestLogIsAppendedAtNext(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		next := func() reply {
			return e.call("GET", logPath(j, "/next"), a.key, nil, "Agentd-Lease-Token: "+j.LeaseToken)
		}
		wantNext(t, next(), 0)
		wantNext(t, a.ship(j, 0, 10, lines(0, 10)), 10)
		// Twice: harmless. An overlap is trimmed, inside what is stored nothing is kept.
		wantNext(t, a.ship(j, 0, 10, lines(0, 10)), 10)
		wantNext(t, a.ship(j, 5, 10, lines(5, 10)), 15)
		wantNext(t, a.ship(j, 2, 3, lines(2, 3)), 15)
		// Above: refused, with next.
		r := a.ship(j, 16, 1, lines(16, 1)).want(t, 409, protocol.CodeLogGap)
		if p := r.problem(); p.Next == nil || *p.Next != 15 {
			t.Errorf("log_gap says next %v; want 15", p.Next)
		}
		// A gap record that straddles next is trimmed.
		wantNext(t, a.ship(j, 13, 8, `{"gap":7,"reason":"spoolFull"}`+"\n"+lines(20, 1)), 21)
		// count=0 just answers next, above next too.
		for _, first := range []int64{0, 21, 9000} {
			wantNext(t, a.ship(j, first, 0, ""), 21)
		}
		wantNext(t, next(), 21)
		var lines strings.Builder
		for i := range 15 {
			fmt.Fprintf(&lines, "n=%d\n", i)
		}
		want := lines.String()
		want += "[gap: 5 records lost: spoolFull]\nn=20\n"
		if got := e.text(j.ID, ""); got != want {
			t.Errorf("log:\n%s\nwant:\n%s", got, want)
		}
	})
}

func TestLogFinal(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		pass(time.Minute)
		job := e.submit(map[string]any{"maxAttempts": 1})
		j := a.start()
		wantNext(t, a.ship(j, 0, 3, lines(0, 3)), 3)
		pass(15 * time.Second) // reaped
		if at := e.job(job.ID).Attempts[0]; at.State != store.AttemptLost || at.LogRecords != nil {
			t.Fatalf("attempt: %+v; want lost, its length unknown", at)
		}
		// Late lines are kept; final says where it ends, whatever next is, and may come alone.
		wantNext(t, a.shipQuery(j, "?first=7&count=0&final=1", nil), 3)
		if at := e.job(job.ID).Attempts[0]; at.LogRecords == nil || *at.LogRecords != 7 || at.LogsComplete {
			t.Errorf("attempt: %+v; want 7 records, not complete", at)
		}
		wantNext(t, a.shipQuery(j, "?first=3&count=4&final=1", []byte(lines(3, 4))), 7)
		if at := e.job(job.ID).Attempts[0]; !at.LogsComplete {
			t.Errorf("attempt: %+v; want complete", at)
		}
		// Past logRecords, too: logs belong to the attempt.
		wantNext(t, a.ship(j, 7, 1, lines(7, 1)), 8)
	})
}

func TestLogOfWhomItConcerns(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.agent(nil), e.agent(nil)
		e.submit(nil)
		j := a.start()
		body := lines(0, 1)
		wrong, missing, never := j, j, j
		wrong.LeaseToken, missing.ID, never.Attempt = "nonsense", "job_x", 9
		for name, r := range map[string]reply{
			"wrong token": a.ship(wrong, 0, 1, body), "another agent": b.ship(j, 0, 1, body), "unknown job": a.ship(missing, 0, 1, body),
			"an attempt never made": a.ship(never, 0, 1, body),
			"no token":              e.call("POST", logPath(j, "?first=0&count=1"), a.key, body, digestOf([]byte(body))),
			"attempt x":             e.call("POST", "/agent/v1/jobs/"+j.ID+"/attempts/x/logs?first=0&count=1", a.key, body, "Agentd-Lease-Token: "+j.LeaseToken),
			"next, wrong token":     e.call("GET", logPath(j, "/next"), a.key, nil, "Agentd-Lease-Token: nonsense"),
			"next, no token":        e.call("GET", logPath(j, "/next"), a.key, nil),
		} {
			t.Log(name)
			r.want(t, 404, protocol.CodeNotFound)
		}
	})
}

func TestLogRequests(t *testing.T) {
	limits := func(c *Config) { c.Limits.LogBody, c.Limits.LogDecoded = 2<<20, 4<<20 }
	bubbleWith(t, limits, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		body := []byte(lines(0, 2))
		sum := sha256.Sum256(body)
		b64 := base64.StdEncoding.EncodeToString(sum[:])
		token := "Agentd-Lease-Token: " + j.LeaseToken
		raw := func(query string, body []byte, headers ...string) reply {
			return e.call("POST", logPath(j, query), a.key, body, append(headers, token)...)
		}
		const q = "?first=0&count=2"
		for _, tc := range []struct {
			name   string
			r      reply
			status int
			code   protocol.Code
		}{
			{"no first", a.shipQuery(j, "?count=2", body), 400, protocol.CodeInvalid},
			{"no count", a.shipQuery(j, "?first=0", body), 400, protocol.CodeInvalid},
			{"first=-1", a.shipQuery(j, "?first=-1&count=2", body), 400, protocol.CodeInvalid},
			{"count=x", a.shipQuery(j, "?first=0&count=x", body), 400, protocol.CodeInvalid},
			{"first+count too large", a.shipQuery(j, "?first=9007199254740990&count=2", body), 400, protocol.CodeInvalid},
			{"final=perhaps", a.shipQuery(j, q+"&final=perhaps", body), 400, protocol.CodeInvalid},
			{"no digest", raw(q, body), 400, protocol.CodeInvalid},
			{"sha-512 only", raw(q, body, "Content-Digest: sha-512=:"+b64+":"), 400, protocol.CodeInvalid},
			{"unreadable digest", raw(q, body, "Content-Digest: sha-256="+b64), 400, protocol.CodeInvalid},
			{"not base64", raw(q, body, "Content-Digest: sha-256=:!!:"), 400, protocol.CodeInvalid},
			{"short digest", raw(q, body, "Content-Digest: sha-256=:AAAA:"), 400, protocol.CodeInvalid},
			{"another body's digest", raw(q, body, digestOf([]byte("x"))), 400, protocol.CodeCorrupt},
			{"count too low", a.ship(j, 0, 1, string(body)), 400, protocol.CodeCorrupt},
			{"count too high", a.ship(j, 0, 3, string(body)), 400, protocol.CodeCorrupt},
			{"count=0 with a body", a.ship(j, 0, 0, string(body)), 400, protocol.CodeCorrupt},
			{"count without a body", a.ship(j, 0, 2, ""), 400, protocol.CodeCorrupt},
			{"not what the encoding says", a.shipQuery(j, q, body, "Content-Encoding: zstd"), 400, protocol.CodeCorrupt},
			{"unknown encoding", a.shipQuery(j, q, body, "Content-Encoding: br"), 415, protocol.CodeInvalid},
			{"two encodings", a.shipQuery(j, q, body, "Content-Encoding: gzip, zstd"), 415, protocol.CodeInvalid},
			{"another type", raw(q, body, digestOf(body), "Content-Type: application/json"), 415, protocol.CodeInvalid},
			{"a record that isn't one", a.ship(j, 0, 1, "hello\n"), 400, protocol.CodeInvalid},
			{"a record over 1 MiB", a.ship(j, 0, 1, outLine(strings.Repeat("x", 1<<20))), 413, protocol.CodeTooLarge},
			{"a body over the limit", a.ship(j, 0, 1, strings.Repeat("x", 2<<20+1)), 413, protocol.CodeTooLarge},
			{"decoded over the limit", a.shipQuery(j, "?first=0&count=20000", encode(t, encZstd, plainLines(20_000, 200)), "Content-Encoding: zstd"), 413, protocol.CodeTooLarge},
		} {
			t.Log(tc.name)
			tc.r.want(t, tc.status, tc.code)
		}
		// A body is stored whole or not at all: nothing of these.
		wantNext(t, a.ship(j, 0, 0, ""), 0)
		// Other members, parameters and a second line of the header don't matter.
		wantNext(t, raw(q, body, "Content-Digest: sha-512=:AAAA:", "Content-Digest: sha-256=:"+b64+":;p=1"), 2)
		next := int64(2)
		for _, enc := range allEncodings {
			two := append(encode(t, enc, []byte(lines(0, 1))), encode(t, enc, []byte(lines(1, 1)))...)
			wantNext(t, a.shipQuery(j, fmt.Sprintf("?first=%d&count=2", next), two, "Content-Encoding: "+enc), next+2)
			next += 2
		}
		if n := e.srv.bodies.used.Load(); n != 0 {
			t.Errorf("%d bytes of bodies are still counted; want 0", n)
		}
	})
}

func TestSnappyOnlyWhereItIsOffered(t *testing.T) {
	offer := func(c *Config) { c.Encodings = []string{"zstd", "gzip"}; c.Limits.LogMemory = 2000 }
	bubbleWith(t, offer, func(t *testing.T, e *env) {
		a := e.agent(nil)
		if got := strings.Join(a.link.LogEncodings, " "); got != "zstd gzip" {
			t.Errorf("offered: %s", got)
		}
		e.submit(nil)
		j := a.start()
		r := a.shipQuery(j, "?first=0&count=1", encode(t, encSnappy, []byte(lines(0, 1))), "Content-Encoding: snappy").want(t, 415, protocol.CodeInvalid)
		if got := r.header.Get("Accept-Encoding"); got != "zstd, gzip" {
			t.Errorf("Accept-Encoding %q", got)
		}
		wantNext(t, a.ship(j, 0, 1, lines(0, 1)), 1)
		// More log bodies than memory: unavailable, and nothing stays counted.
		a.ship(j, 1, 1, outLine(strings.Repeat("x", 3000))).want(t, 503, protocol.CodeUnavailable)
		wantNext(t, a.ship(j, 1, 1, lines(0, 1)), 2)
	})
}

func TestLogFormats(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(nil)
		if got := e.text(job.ID, ""); got != "" {
			t.Errorf("no attempt yet: %q; want nothing", got)
		}
		j := a.start()
		at := time.Now().UnixMicro()
		a.ship(j, 0, 11, `{"ts":1,"s":"out","m":"one"}
{"ts":2,"s":"out","m":"a long","part":true}
{"ts":3,"s":"err","m":"oops"}
{"ts":4,"s":"out","m":" line\t\u00e9"}
{"ts":5,"s":"out","b":"/wA="}
{"gap":4,"reason":"two\nlines"}
{"ts":6,"s":"out","m":"end","eof":true}
{"ts":7,"s":"agent","m":"pipe left"}
`).want(t, 200, "")
		a.ship(j, 11, 1, `{ "m":"other form", "s":"err", "ts":8, "n":5, "eof":true }`).want(t, 200, "")
		want := "one\na long line\té\noops\n\xff\x00\n[gap: 4 records lost: \"two\\nlines\"]\nend\npipe left\nother form"
		r := e.admin("GET", "jobs/"+job.ID+"/logs?format=text", nil).want(t, 200, "")
		if string(r.body) != want || r.header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("text: %q\nwant: %q", r.body, want)
		}
		want = fmt.Sprintf(`{"n":2,"ts":3,"s":"err","m":"oops"}
{"n":3,"ts":4,"s":"out","m":" line\t\u00e9"}
{"n":4,"ts":5,"s":"out","b":"/wA="}
{"n":5,"ts":%d,"s":"agent","gap":4,"reason":"two\nlines"}
{"n":9,"ts":6,"s":"out","m":"end","eof":true}
{"n":10,"ts":7,"s":"agent","m":"pipe left"}
{"n":11,"ts":8,"s":"err","m":"other form","eof":true}
`, at)
		r = e.admin("GET", "jobs/"+job.ID+"/logs?format=ndjson&from=2&attempt=1", nil).want(t, 200, "")
		if string(r.body) != want || r.header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("ndjson: %s\nwant: %s", r.body, want)
		}
		// From within a gap, and beyond the end.
		r = e.admin("GET", "jobs/"+job.ID+"/logs?format=ndjson&from=7", nil).want(t, 200, "")
		if first, _, _ := strings.Cut(string(r.body), "\n"); first != fmt.Sprintf(`{"n":7,"ts":%d,"s":"agent","gap":2,"reason":"two\nlines"}`, at) {
			t.Errorf("from within the gap: %s", first)
		}
		if got := e.text(job.ID, "?from=12"); got != "" {
			t.Errorf("beyond the end: %q", got)
		}
		for _, q := range []string{"?format=xml", "?from=-1", "?from=x", "?attempt=x", "?attempt=-1", "?follow=perhaps"} {
			e.admin("GET", "jobs/"+job.ID+"/logs"+q, nil).want(t, 400, protocol.CodeInvalid)
		}
		e.admin("GET", "jobs/"+job.ID+"/logs?attempt=2", nil).want(t, 404, protocol.CodeNotFound)
		e.admin("GET", "jobs/job_x/logs", nil).want(t, 404, protocol.CodeNotFound)
	})
}

func TestFollow(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		follow := func(id, query string) <-chan reply {
			return later(func() reply { return e.admin("GET", "jobs/"+id+"/logs?follow=true"+query, nil) })
		}
		job := e.submit(nil)
		all := follow(job.ID, "") // waits while pending
		pass(10 * time.Minute)
		j := a.start()
		a.ship(j, 0, 2, lines(0, 2)).want(t, 200, "")
		tail := follow(job.ID, "&from=3&attempt=1")
		pass(2 * time.Second)
		a.complete(j, protocol.Succeeded, 4).want(t, 200, "")
		pass(time.Hour) // over, and its log incomplete: it waits for the rest
		a.ship(j, 2, 2, lines(2, 2)).want(t, 200, "")
		r := (<-all).want(t, 200, "")
		if string(r.body) != "n=0\nn=1\nn=2\nn=3\n" || r.took < 70*time.Minute {
			t.Errorf("followed %q in %v", r.body, r.took)
		}
		if r := (<-tail).want(t, 200, ""); string(r.body) != "n=3\n" {
			t.Errorf("tail %q; want n=3", r.body)
		}
		// A job that printed nothing; one cancelled before it ran; one whose log's length nobody will ever know.
		e.submit(nil)
		quiet := a.start()
		a.complete(quiet, protocol.Succeeded, 0).want(t, 200, "")
		never := e.submit(nil)
		e.admin("POST", "jobs/"+never.ID+"/cancel", nil).want(t, 202, "")
		e.submit(map[string]any{"maxAttempts": 1})
		lost := a.start()
		a.ship(lost, 0, 1, lines(0, 1)).want(t, 200, "")
		lostLog := follow(lost.ID, "")
		pass(15 * time.Second)
		if r := (<-lostLog).want(t, 200, ""); string(r.body) != "n=0\n" || r.took > 13*time.Second {
			t.Errorf("lost: %q after %v; want n=0 when the reaper came", r.body, r.took)
		}
		for _, id := range []string{quiet.ID, never.ID} {
			if r := (<-follow(id, "")).want(t, 200, ""); len(r.body) != 0 || r.took != 0 {
				t.Errorf("%q after %v; want nothing at once", r.body, r.took)
			}
		}
	})
}

// An offer that lapsed has no log to follow: the next attempt's is followed.
func TestFollowSkipsOffersThatCameToNothing(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(nil)
		all := later(func() reply { return e.admin("GET", "jobs/"+job.ID+"/logs?follow=true", nil) })
		synctest.Wait()
		a.on(a.lease(), "release", nil).want(t, 200, "")
		a.lease()
		pass(20 * time.Second) // lapses
		j := a.start()
		a.ship(j, 0, 1, lines(0, 1)).want(t, 200, "")
		a.complete(j, protocol.Succeeded, 1).want(t, 200, "")
		if r := (<-all).want(t, 200, ""); string(r.body) != "n=0\n" {
			t.Errorf("followed %q; want n=0 of attempt 3", r.body)
		}
	})
}

// What is stored is seen while it is followed, not only at the end, and shutdown ends it.
func TestFollowFlushesAndEndsAtShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(nil)
		j := a.start()
		conn, err := e.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprintf(conn, "GET /api/v1/jobs/%s/logs?follow=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", job.ID, adminToken)
		seen := make(chan string, 100)
		go func() {
			defer close(seen)
			buf := make([]byte, 4096)
			for {
				n, err := conn.Read(buf)
				if err != nil {
					return
				}
				seen <- string(buf[:n])
			}
		}()
		if head := <-seen; !strings.HasPrefix(head, "HTTP/1.1 200 OK") {
			t.Fatalf("head %q", head)
		}
		for i := range 3 {
			pass(9 * time.Second)
			a.on(j, "heartbeat", nil).want(t, 200, "")
			a.ship(j, int64(i), 1, lines(i, 1)).want(t, 200, "")
			synctest.Wait()
			if got := <-seen; !strings.Contains(got, fmt.Sprintf("n=%d\n", i)) {
				t.Errorf("saw %q; want n=%d", got, i)
			}
		}
		e.stop()
		if got := <-seen; got != "0\r\n\r\n" {
			t.Errorf("at shutdown: %q; want the end of the body", got)
		}
	})
}
