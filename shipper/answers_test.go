package shipper

import (
	"fmt"
	"testing"
	"time"

	"agentd/agent/protocol"
)

// next is what the request that follows an answer must be.
type next struct {
	what     string // again: the same body; smaller; recoded: the same records in another encoding; none
	from, to time.Duration
}

// The table of docs/protocol.md for log bodies, row by row: what follows each answer, and when. Statuses without a code, or
// with one that isn't theirs, come from something in between, and cost nothing but a retry.
func TestL5EachAnswerAndWhatFollowsIt(t *testing.T) {
	at := func(what string, from, to time.Duration) next { return next{what, from, to} }
	again, atOnce := at("again", 0, time.Second), 20*time.Millisecond // a first back-off is within half a second
	for _, c := range []struct {
		status int
		code   protocol.Code
		want   next
	}{
		{400, protocol.CodeInvalid, at("smaller", 0, atOnce)},
		{422, protocol.CodeInvalid, at("smaller", 0, atOnce)},
		{405, protocol.CodeInvalid, at("smaller", 0, atOnce)},
		{415, protocol.CodeInvalid, at("recoded", 0, atOnce)},
		{400, protocol.CodeCorrupt, again},
		{401, protocol.CodeUnauthenticated, again}, // the client has re-linked in vain by then
		{403, protocol.CodeRevoked, at("again", 5*time.Minute, 6*time.Minute)},
		{409, protocol.CodeIdentityConflict, at("again", 5*time.Minute, 6*time.Minute)},
		{404, protocol.CodeNotFound, at("none", 0, 0)},
		{409, protocol.CodeLeaseLost, again}, // ends the job, not its log
		{409, protocol.CodeLogGap, again},
		{413, protocol.CodeTooLarge, at("smaller", 0, atOnce)},
		{413, "", at("smaller", 0, atOnce)},
		{429, protocol.CodeThrottled, again},
		{429, "", again},
		{503, protocol.CodeUnavailable, again},
		{500, protocol.CodeInternal, again},
		{501, "", at("again", time.Minute, 2*time.Minute)},
		{505, "", at("again", time.Minute, 2*time.Minute)},
		{407, "", again},
		{400, "", again}, {401, "", again}, {403, "", again}, {404, "", again}, {408, "", again}, {409, "", again}, {415, "", again}, {422, "", again},
		{425, "", again}, {500, "", again}, {502, "", again}, {503, "", again}, {504, "", again}, {418, "", again}, {599, "", again}, {302, "", again},
		{404, protocol.CodeInvalid, again}, {500, protocol.CodeNotFound, again}, {400, protocol.CodeRevoked, again}, // codes that aren't theirs
	} {
		t.Run(fmt.Sprint(c.status, " ", c.code), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				v := newServer()
				var when []time.Time
				v.fault = func(protocol.AttemptRef, protocol.LogBody) *fault {
					if when = append(when, time.Now()); len(when) == 1 {
						return &fault{err: answer(c.status, c.code)}
					}
					return nil
				}
				cfg := config(t, v)
				cfg.Spool = newMemSpool() // where an orphan goes
				cfg.WhenFull = WhenFullBlock
				r := start(t, v, cfg)
				l := r.open("a")
				text := numbered(1, 100)
				r.print(l, protocol.Stdout, text)
				l.Close()
				time.Sleep(time.Hour)
				v.mu.Lock()
				bodies := v.bodies
				v.mu.Unlock()
				if c.want.what == "none" {
					if st := r.Stats(); len(bodies) != 1 || st.Spool != 100 {
						t.Errorf("%d requests, %d records kept for the operator; want 1 and 100", len(bodies), st.Spool)
					}
					return
				}
				if len(bodies) < 2 {
					t.Fatalf("%d requests in an hour", len(bodies))
				}
				first, then, wait := bodies[0], bodies[1], when[1].Sub(when[0])
				if wait < c.want.from || wait > c.want.to {
					t.Errorf("the next request came after %v, want %v to %v", wait, c.want.from, c.want.to)
				}
				got := "something else"
				switch {
				case then.First != first.First:
				case then.Count == first.Count && then.Encoding == first.Encoding:
					got = "again"
				case then.Count == first.Count:
					got = "recoded"
				case then.Count < first.Count:
					got = "smaller"
				}
				if got != c.want.what && (c.want.what != "again" || c.want.from == 0 || got != "recoded") {
					t.Errorf("the next request was %s, want %s: %+v, %+v", got, c.want.what, first, then)
				}
				r.flush()
				r.want("a", text)
				if dead := r.Stats().Dead; dead != 0 {
					t.Errorf("%d records were dead-lettered", dead)
				}
			})
		})
	}
}
