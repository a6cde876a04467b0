package conformance_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// uncaught are the checks that no mutant is made for: they wait for a minute, and what they wait for is the same as what quick ones do.
var uncaught = map[string]bool{
	"identity/old-key-ends": true, "jobs/poll-default-wait": true, "jobs/poll-cap": true, "queries/activate-cap": true,
	"queries/presence-ends": true, "queries/ask-cap": true,
}

func mutants() []mutant {
	return slices.Concat(groundMutants(), identityMutants(), pollMutants(), leaseMutants(), settleMutants(), logMutants(), queryMutants(), adminMutants(), faultMutants())
}

func groundMutants() []mutant {
	return []mutant{
		{name: "refuses unknown members", route: rAll, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			body := peek(r)
			if strings.Contains(body, "somethingNew") {
				http.Error(w, "{}", http.StatusBadRequest)
				return
			}
			next.ServeHTTP(w, r)
		}, caught: []string{"ground/unknown-members"}},
		{name: "takes names in any case", route: rBeat, before: func(r *http.Request) {
			edit(r, func(m map[string]any) {
				for k, v := range maps.Clone(m) {
					if strings.EqualFold(k, "leaseToken") {
						m["leaseToken"] = v
					}
				}
			})
		}, caught: []string{"ground/exact-names"}},
		{name: "doesn't name the member", route: rAll, after: is("invalid", func(a *answerOf) { a.set(map[string]any{"detail": "no"}) }),
			caught: []string{"ground/invalid-names-member", "ground/base64", "identity/start-required", "admin/tokens", "queries/ask-unavailable", "ground/limit-payload"}},
		{name: "challenges anything", route: rChallenge, after: is("invalid", okay(`{"nonce":"x","serverId":"x","expiresInMs":1}`)),
			caught: []string{"ground/utf8", "ground/base64", "ground/invalid-names-member"}},
		{name: "gives ids with dots", route: rLink, after: with(map[string]any{"agentId": "not.an.id"}), caught: []string{"ground/ids"}},
		{name: "tells its own time", route: rPoll, after: with(map[string]any{"createdAt": "2020-01-01T00:00:00Z"}), caught: []string{"ground/stamps", "jobs/offer-members"}},
		{name: "leaves WWW-Authenticate out", route: rAll, after: is("unauthenticated", func(a *answerOf) { a.header.Del("WWW-Authenticate") }),
			caught: []string{"ground/wrong-credential", "identity/signature", "identity/take-over"}},
		{name: "reads the body first", route: "POST /agent/.*", before: func(r *http.Request) { peek(r) }, caught: []string{"ground/credential-before-body"}},
		{name: "answers with nothing", route: rRelease + "|" + rComplete, after: func(_ *http.Request, a *answerOf) {
			if a.status == 200 {
				a.body = nil
			}
		}, caught: []string{"ground/bodies-of-successes", "jobs/offer-released"}},
		{name: "says 400 to what is too large", route: rAll, after: is("too_large", says(400, "invalid")),
			caught: []string{"ground/limit-json-body", "ground/limit-log-body", "ground/limit-unpacked", "ground/limit-record"}},
		{name: "says 413 to long fields", route: rSubmit + "|" + rComplete, after: is("invalid", says(413, "too_large")), caught: []string{"ground/limit-payload", "ground/limit-names"}},
		{name: "says 404 to methods", route: rAll, after: func(_ *http.Request, a *answerOf) {
			if a.status == 405 {
				a.problem(404, "not_found")
			}
		}, caught: []string{"errors/method"}},
		{name: "takes any media type", route: rBeat + "|" + rShip, before: func(r *http.Request) {
			r.Header.Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/logs") {
				r.Header.Set("Content-Type", "application/x-ndjson")
			}
		}, caught: []string{"errors/media-type"}},
		{name: "sends plain errors", route: rAll, after: is("not_found", func(a *answerOf) { a.header.Set("Content-Type", "text/plain") }), caught: []string{"errors/problems"}},
		{name: "sends codes with other statuses", route: rAll, after: is("not_found", func(a *answerOf) { a.status = 422; a.set(map[string]any{"status": 422}) }), caught: []string{"errors/codes", "jobs/unknown-job"}},
		{name: "leaves next out of log_gap", route: rShip, after: is("log_gap", func(a *answerOf) { a.set(map[string]any{"next": nil}) }), caught: []string{"errors/log-gap-next", "logs/gap"}},
		{name: "asks for patience in words", route: rAsk, after: is("unavailable", func(a *answerOf) { a.header.Set("Retry-After", "soon") }), caught: []string{"errors/retry-after"}, beside: []string{"queries/ask-unavailable"}},
	}
}

const someLink = `{"agentId":"ag_x","apiKey":"agk_x","apiKeyExpiresInMs":1000,"leaseTtlMs":1500,"heartbeatMs":450,"pollWaitMs":1000,"maxLogBody":1000,"logEncodings":["zstd","gzip"],"serverId":"x"}`

func identityMutants() []mutant {
	keys := &superseded{last: map[string]string{}, old: map[string]bool{}}
	return []mutant{
		{name: "doesn't say when nonces expire", route: rChallenge, after: with(map[string]any{"expiresInMs": nil}), caught: []string{"identity/challenge"}},
		{name: "is another server at each instance", route: rLink, after: with(map[string]any{"serverId": "x"}), caught: []string{"identity/nonce-anywhere", "identity/challenge"}},
		{name: "takes any proof", route: rLink, after: is("unauthenticated", okay(someLink)),
			caught: []string{"identity/nonce-once", "identity/refusals-alike", "identity/signature", "identity/bound-to-another", "identity/first-link", "identity/link-repeated", "identity/another-token", "admin/tokens"}},
		{name: "knows one encoding", route: rLink, after: with(map[string]any{"logEncodings": []string{"zstd"}}), caught: []string{"identity/link-answer"}},
		{name: "says 401 to another key", route: rLink, after: is("identity_conflict", says(401, "unauthenticated")), caught: []string{"identity/take-over", "identity/another-key"}},
		{name: "keeps the old name", route: rAgent, after: with(map[string]any{"name": "before"}), caught: []string{"identity/re-link", "admin/agents"}},
		{name: "says 401 to a link without token and id", route: rLink, after: is("invalid", says(401, "unauthenticated")), caught: []string{"identity/neither", "identity/start-required"}},
		{name: "ends keys at once", route: rAgents, pass: keys.serve, caught: []string{"identity/old-key-overlaps", "identity/keys-of-processes"}},
		{name: "says 204 to former processes", route: rPoll, after: is("identity_conflict", func(a *answerOf) { a.status, a.body = 204, nil }), caught: []string{"identity/clone-ends-poll", "identity/clone-refused"}},
		{name: "refuses links without start", route: rLink, pass: refuseIf(`"start":false`, 409, "identity_conflict"), caught: []string{"identity/clone-served", "identity/keys-of-processes", "identity/re-link"}},
		{name: "refuses re-links with start", route: rLink, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Header.Get("Authorization") == "" {
				refuseIf(`"start":true`, 409, "identity_conflict")(w, r, next)
				return
			}
			next.ServeHTTP(w, r)
		}, caught: []string{"identity/restart-is-current", "identity/clone-served", "identity/clone-ends-poll"}},
		{name: "says 401 to the revoked", route: rAgents, after: is("revoked", says(401, "unauthenticated")), caught: []string{"identity/revoked", "identity/revoked-poll-ends", "identity/restored", "admin/agent-verbs"}},
		{name: "shows what runs as lost", route: rJob, after: replace(`"state":"running"`, `"state":"lost"`), caught: []string{"identity/revoked-jobs-go-on", "jobs/offer-accepted", "admin/job"}},
	}
}

func pollMutants() []mutant {
	return []mutant{
		{name: "polls without headers", route: rPoll, before: func(r *http.Request) {
			for _, h := range []string{"Agentd-Poll-Id", "Agentd-Process-Id"} {
				if r.Header.Get(h) == "" {
					r.Header.Set(h, "x")
				}
			}
		}, caught: []string{"jobs/poll-headers"}},
		{name: "polls with any query", route: rPoll, before: func(r *http.Request) {
			query(r, func(q map[string][]string) {
				if len(q["wait"]) > 0 && strings.Trim(q["wait"][0], "0123456789") != "" {
					q["wait"] = []string{"0"}
				}
			})
		}, caught: []string{"jobs/poll-query"}},
		{name: "polls a second too long", route: rPoll, before: func(r *http.Request) {
			query(r, func(q map[string][]string) {
				n, _ := strconv.Atoi(q["wait"][0])
				q["wait"] = []string{strconv.Itoa(n + 1)}
			})
		}, caught: []string{"jobs/poll-none"}},
		{name: "looks only at the end of a poll", route: rPoll, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			n, _ := strconv.Atoi(r.URL.Query().Get("wait"))
			rest(r.Context(), time.Duration(n)*time.Second)
			query(r, func(q map[string][]string) { q["wait"] = []string{"0"} })
			next.ServeHTTP(w, r)
		}, caught: []string{"jobs/poll-wakes", "jobs/poll-wakes-anywhere"}},
		{name: "calls no job an error", route: rPoll, after: func(_ *http.Request, a *answerOf) {
			if a.status == 204 {
				a.problem(503, "unavailable")
			}
		}, caught: []string{"jobs/poll-none", "jobs/shutdown-ends-polls"}},
		{name: "holds for clients that have gone", route: rPoll, pass: deaf, caught: []string{"jobs/poll-client-gone"}},
		{name: "forgets poll ids", route: rPoll, before: func() func(*http.Request) {
			var n atomic.Int64
			return func(r *http.Request) {
				if r.Header.Get("Agentd-Poll-Id") != "" {
					r.Header.Set("Agentd-Poll-Id", fmt.Sprintf("%s-%d", r.Header.Get("Agentd-Process-Id")[:20], n.Add(1)))
				}
			}
		}(), caught: []string{"jobs/same-poll-same-offer", "jobs/same-poll-anywhere", "jobs/same-poll-after-restart"}},
		{name: "repeats offers for ever", route: rPoll, after: remember(func(r *http.Request) string { return r.Header.Get("Agentd-Poll-Id") }), caught: []string{"jobs/same-poll-not-renewed", "jobs/same-poll-same-offer"}},
		{name: "gives a job to every poll", route: rPoll, after: remember(func(r *http.Request) string { return r.URL.Query().Get("type") }), caught: []string{"jobs/one-job-one-poll", "jobs/oldest-first"}},
		{name: "gives any job to any agent", route: rSubmit, before: func(r *http.Request) {
			edit(r, func(m map[string]any) { delete(m, "labels"); delete(m, "agentId") })
		}, caught: []string{"jobs/who-may-have-it", "admin/jobs-filters"}},
		{name: "loses the environment", route: rPoll, after: with(map[string]any{"env": map[string]any{}}), caught: []string{"jobs/offer-members"}},
		{name: "never lapses offers", route: rJob, after: replace(`"lapsed"`, `"offered"`), caught: []string{"jobs/offer-lapses", "jobs/what-counts"}},
		{name: "releases once", route: rRelease, after: once(), caught: []string{"jobs/offer-released"}},
		{name: "counts from one each time", route: rPoll, after: with(map[string]any{"attempt": 1}), caught: []string{"jobs/attempt-numbers"}},
	}
}

func leaseMutants() []mutant {
	return []mutant{
		{name: "leaves cancel out", route: rBeat, after: with(map[string]any{"cancel": nil}), caught: []string{"jobs/heartbeat-answer"}},
		{name: "never holds heartbeats", route: rBeat, before: waitMs("0"), caught: []string{"jobs/heartbeat-holds"}},
		{name: "holds heartbeats to the end", route: rBeat, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			n, _ := strconv.Atoi(r.URL.Query().Get("waitMs"))
			rest(r.Context(), min(time.Duration(n)*time.Millisecond, 2*time.Second))
			waitMs("0")(r)
			next.ServeHTTP(w, r)
		}, caught: []string{"jobs/heartbeat-hold-cap", "jobs/heartbeat-cancel-wakes", "jobs/heartbeat-cancel-anywhere", "jobs/heartbeat-end-wakes", "jobs/heartbeat-cancelled-not-held"}},
		{name: "renews once", route: rBeat, pass: func() func(http.ResponseWriter, *http.Request, http.Handler) {
			var seen sync.Map
			return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if _, again := seen.LoadOrStore(r.URL.Path, true); again {
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, `{"leaseTtlMs":1500,"heartbeatMs":450,"cancel":null}`)
					return
				}
				next.ServeHTTP(w, r)
			}
		}(), caught: []string{"jobs/heartbeat-renews", "jobs/heartbeat-cancelled-renewed"}},
		{name: "renews only as a heartbeat arrives", route: rBeat, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			n, _ := strconv.Atoi(r.URL.Query().Get("waitMs"))
			waitMs("0")(r)
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			rest(r.Context(), min(time.Duration(n)*time.Millisecond, 500*time.Millisecond))
			maps.Copy(w.Header(), rec.Header())
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes())
		}, caught: []string{"jobs/heartbeat-renews-again"}},
		{name: "loses spooledBytes", route: rBeat, before: func(r *http.Request) {
			edit(r, func(m map[string]any) {
				if s, _ := m["spooledBytes"]; fmt.Sprint(s) == "4321" {
					delete(m, "spooledBytes")
				}
			})
		}, caught: []string{"jobs/heartbeat-spooled"}},
		{name: "promises longer leases than it gives", route: rLink, after: with(map[string]any{"leaseTtlMs": 4500}), caught: []string{"jobs/reaper-spares", "jobs/reaper", "jobs/restart-reruns-nothing"}},
		{name: "never reaps", route: rJob, after: replace(`"lost"`, `"running"`), caught: []string{"jobs/reaper", "jobs/complete-lost-late", "logs/after-lease-lost"}},
	}
}

func settleMutants() []mutant {
	return []mutant{
		{name: "loses signals", route: rComplete, before: func(r *http.Request) { edit(r, func(m map[string]any) { delete(m, "signal") }) }, caught: []string{"jobs/complete-report"}},
		{name: "takes timedOut for failed", route: rComplete, before: func(r *http.Request) {
			edit(r, func(m map[string]any) {
				if m["outcome"] == "timedOut" {
					m["outcome"] = "failed"
				}
			})
		}, caught: []string{"jobs/complete-outcomes", "jobs/retry-on"}},
		{name: "takes any log for complete", route: rComplete, before: func(r *http.Request) { edit(r, func(m map[string]any) { m["logRecords"] = 0 }) },
			caught: []string{"jobs/complete-log-records", "jobs/complete-lost-late", "admin/logs-follow"}},
		{name: "completes once", route: rComplete, after: once(), caught: []string{"jobs/complete-again", "jobs/complete-after-given-on"}},
		{name: "takes any completion", route: rComplete, after: is("lease_lost", okay("{}")), caught: []string{"jobs/complete-otherwise", "jobs/fencing-token", "jobs/fencing-over", "jobs/completion-beats-reaper"}},
		{name: "renews with any token", route: rBeat, after: is("lease_lost", okay(`{"leaseTtlMs":1500,"heartbeatMs":450,"cancel":null}`)), caught: []string{"jobs/fencing-token", "jobs/cancel-offered", "jobs/offer-lapses"}},
		{name: "tries for ever", route: rJob, after: replace(`"status":"failed"`, `"status":"pending"`), caught: []string{"jobs/complete-offer", "jobs/what-counts", "jobs/cancel-no-retry", "admin/retry"}},
		{name: "tries twice", route: rSubmit, before: func(r *http.Request) {
			edit(r, func(m map[string]any) {
				if _, ok := m["maxAttempts"]; !ok {
					m["maxAttempts"] = 2
				}
			})
		}, caught: []string{"jobs/retry-lost", "admin/submit"}},
		{name: "never cancels", route: rJob, after: replace(`"status":"cancelled"`, `"status":"pending"`),
			caught: []string{"jobs/accepted-released", "jobs/cancel-pending", "jobs/cancel-running", "jobs/cancel-never-confirmed", "jobs/complete-after-cancel"}},
		{name: "cancels what has ended", route: rCancel, after: with(map[string]any{"status": "cancelled"}), caught: []string{"jobs/cancel-settled", "jobs/cancel-running"}},
		{name: "takes the last reason", route: rBeat, after: replace(`"the first"`, `"the second"`), caught: []string{"jobs/cancel-first-reason"}},
		{name: "calls unknown jobs lost", route: rBeat + "|" + rComplete + "|" + rRelease, after: is("not_found", says(409, "lease_lost")), caught: []string{"jobs/unknown-job"}},
	}
}

func queryMutants() []mutant {
	return []mutant{
		{name: "activates anything", route: rActivate, after: is("invalid", okay(`{"queries":[]}`)), caught: []string{"queries/activate-required"}},
		{name: "never holds activations", route: rActivate, before: func(r *http.Request) { edit(r, func(m map[string]any) { m["waitMs"] = 0 }) }, caught: []string{"queries/activate-empty"}},
		{name: "looks only at the end of an activation", route: rActivate, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.Contains(peek(r), `"waitMs":45000`) {
				rest(r.Context(), 45*time.Second)
			}
			next.ServeHTTP(w, r)
		}, caught: []string{"queries/activate-wakes"}},
		{name: "hands out queries for all of an agent's connectors", route: rActivate, before: union("connectors"), caught: []string{"queries/activate-only-its-connectors"}},
		{name: "believes that everybody announced everything", route: rLink, before: func() func(*http.Request) {
			types, connectors := union("types"), union("connectors")
			return func(r *http.Request) { types(r); connectors(r) }
		}(), caught: []string{"queries/activate-only-announced"}},
		{name: "hands out more than maxQueries", route: rActivate, before: func(r *http.Request) {
			edit(r, func(m map[string]any) {
				if fmt.Sprint(m["maxQueries"]) == "2" {
					m["maxQueries"] = 10
				}
			})
		}, caught: []string{"queries/activate-max"}},
		{name: "lets askers wait for nobody", route: rAsk, after: is("unavailable", says(504, "timeout")), caught: []string{"queries/presence", "queries/ask-unavailable"}},
		{name: "hands out queries to clients that have gone", route: rActivate, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rec := httptest.NewRecorder() // which takes any answer
			deaf(rec, r, next)
			copyTo(w, rec)
		}, caught: []string{"queries/not-delivered"}},
		{name: "thanks for any answer", route: rAnswer, after: is("gone", func(a *answerOf) { a.status, a.body = 204, nil }), caught: []string{"queries/answered", "queries/answer-gone", "queries/lost-with-restart"}},
		{name: "takes malformed answers", route: rAnswer, after: is("invalid", func(a *answerOf) { a.status, a.body = 204, nil }), caught: []string{"queries/answer-error"}},
		{name: "keeps Retry-After to itself", route: rAsk, after: func(_ *http.Request, a *answerOf) { a.header.Del("Retry-After") }, caught: []string{"queries/ask-error"}},
		{name: "calls the fenced gone", route: rAnswer, after: is("fenced", says(410, "gone")), caught: []string{"queries/answer-fenced"}},
		{name: "is unavailable when busy", route: rAsk, after: is("busy", says(503, "unavailable")), caught: []string{"queries/ask-busy"}},
		{name: "is in a hurry", route: rAsk, before: func(r *http.Request) { edit(r, func(m map[string]any) { m["timeoutMs"] = 10 }) }, caught: []string{"queries/ask-timeout"}},
		{name: "asks for askers that have gone", route: rAsk, pass: deaf, caught: []string{"queries/ask-withdrawn"}},
	}
}

func adminMutants() []mutant {
	return []mutant{
		{name: "ignores idempotency keys", route: rSubmit, before: func(r *http.Request) { edit(r, func(m map[string]any) { delete(m, "idempotencyKey") }) }, caught: []string{"admin/idempotency"}},
		{name: "leaves a member of jobs out", route: rJob, after: with(map[string]any{"retryOn": nil}), caught: []string{"admin/job"}},
		{name: "gives no reasons", route: rJob, after: with(map[string]any{"reason": ""}), caught: []string{"admin/reason", "jobs/complete-report", "admin/cancel"}},
		{name: "lists every status", route: "GET /api/v1/jobs", before: func(r *http.Request) { query(r, func(q map[string][]string) { delete(q, "status") }) }, caught: []string{"admin/jobs-filters"}},
		{name: "lists the first page for ever", route: "GET /api/v1/jobs", before: func(r *http.Request) { query(r, func(q map[string][]string) { delete(q, "after") }) }, caught: []string{"admin/jobs-pages"}},
		{name: "says 200 to cancels", route: rCancel, after: func(_ *http.Request, a *answerOf) {
			if a.status == 202 {
				a.status = 200
			}
		}, caught: []string{"admin/cancel", "jobs/cancel-pending"}},
		{name: "lists no agents", route: "GET /api/v1/agents", after: with(map[string]any{"items": []any{}, "next": ""}), caught: []string{"admin/agents"}},
		{name: "doesn't show who is revoked", route: rVerb, after: with(map[string]any{"revoked": false}), caught: []string{"admin/agent-verbs"}},
		{name: "wants a token for its health", route: "GET /(?:healthz|readyz|metrics)", after: always(says(401, "unauthenticated")), caught: []string{"admin/health"}},
	}
}

func faultMutants() []mutant {
	put := "PUT /mock/v1/faults"
	rule := func(with func(map[string]any)) func(*http.Request) {
		return func(r *http.Request) {
			edit(r, func(m map[string]any) {
				for _, one := range m["rules"].([]any) {
					with(one.(map[string]any))
				}
			})
		}
	}
	mode := func(from, to string) func(*http.Request) {
		return rule(func(m map[string]any) {
			if m["mode"] == from {
				m["mode"] = to
			}
		})
	}
	outage := func(with map[string]any) func(*http.Request) {
		return func(r *http.Request) { edit(r, func(m map[string]any) { maps.Copy(m, with) }) }
	}
	return []mutant{
		{name: "takes unknown faults", route: put, after: is("invalid", okay(`{"rules":[]}`)), caught: []string{"faults/admin"}},
		{name: "has the last rule win", route: put, before: func(r *http.Request) { edit(r, func(m map[string]any) { slices.Reverse(m["rules"].([]any)) }) }, caught: []string{"faults/first-match"}},
		{name: "strikes with another status", route: put, before: rule(func(m map[string]any) { m["status"] = 500 }), caught: []string{"faults/status"}},
		{name: "isn't slow", route: put, before: rule(func(m map[string]any) { delete(m, "delayMs") }), caught: []string{"faults/slow"}},
		{name: "answers instead of hanging", route: put, before: mode("hang", "status"), caught: []string{"faults/hang"}},
		{name: "commits before it resets", route: put, before: mode("reset", "dropResponse"), caught: []string{"faults/reset"}},
		{name: "drops the request with the response", route: put, before: mode("dropResponse", "reset"), caught: []string{"faults/drop-response"}},
		{name: "truncates nothing", route: put, before: mode("truncate", "slow"), caught: []string{"faults/truncate"}},
		{name: "has no pages", route: put, before: mode("html", "status"), caught: []string{"faults/html"}},
		{name: "is silent instead of down", route: "PUT /mock/v1/outage", before: outage(map[string]any{"mode": "blackhole"}), caught: []string{"faults/outage-refuse"}},
		{name: "is down instead of silent", route: "PUT /mock/v1/outage", before: outage(map[string]any{"mode": "refuse"}), caught: []string{"faults/outage-blackhole"}},
		{name: "reaps during outages", route: "PUT /mock/v1/outage", before: outage(map[string]any{"partition": true}), caught: []string{"faults/outage-reaper-rests"}},
		{name: "rests during partitions", route: "PUT /mock/v1/outage", before: outage(map[string]any{"partition": false}), caught: []string{"faults/outage-partition"}},
	}
}

// What mutants are made of.

// peek reads a body and puts it back.
func peek(r *http.Request) string {
	raw, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(strings.NewReader(string(raw)))
	return string(raw)
}

// body replaces a request's body, its digest with it.
func body(r *http.Request, raw string) {
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(raw)), int64(len(raw))
	sum := sha256.Sum256([]byte(raw))
	r.Header.Set("Content-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
}

func refuseIf(holds string, status int, code string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.Contains(peek(r), holds) {
			next.ServeHTTP(w, r)
			return
		}
		a := &answerOf{header: w.Header()}
		a.problem(status, code)
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body)
	}
}

// deaf serves a request to its end, whether or not its client is there.
func deaf(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
}

// rest waits, as long as somebody waits with it.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func waitMs(ms string) func(*http.Request) {
	return func(r *http.Request) { query(r, func(q map[string][]string) { q["waitMs"] = []string{ms} }) }
}

func replace(from, to string) func(*http.Request, *answerOf) {
	return func(_ *http.Request, a *answerOf) { a.body = []byte(strings.ReplaceAll(string(a.body), from, to)) }
}

func cutOut(pattern string) func(*http.Request, *answerOf) {
	re := regexp.MustCompile(pattern)
	return func(_ *http.Request, a *answerOf) { a.body = re.ReplaceAll(a.body, nil) }
}

// once has the second success of a path refused.
func once() func(*http.Request, *answerOf) {
	var done sync.Map
	return func(r *http.Request, a *answerOf) {
		if a.status != 200 {
			return
		}
		if _, again := done.LoadOrStore(r.URL.Path, true); again {
			a.problem(409, "lease_lost")
		}
	}
}

// remember answers with the first job that a key got.
func remember(key func(*http.Request) string) func(*http.Request, *answerOf) {
	var first sync.Map
	return func(r *http.Request, a *answerOf) {
		if a.status != 200 && a.status != 204 {
			return
		}
		if a.status == 200 {
			first.LoadOrStore(key(r), a.body)
		}
		if was, ok := first.Load(key(r)); ok {
			a.ok(string(was.([]byte)))
		}
	}
}

// union has every request name what any has named.
func union(member string) func(*http.Request) {
	var mu sync.Mutex
	all := []any{}
	return func(r *http.Request) {
		edit(r, func(m map[string]any) {
			mu.Lock()
			defer mu.Unlock()
			list, _ := m[member].([]any)
			for _, one := range list {
				if !slices.Contains(all, one) {
					all = append(all, one)
				}
			}
			m[member] = slices.Clone(all)
		})
	}
}

// superseded refuses every key but an agent's last.
type superseded struct {
	mu   sync.Mutex
	last map[string]string
	old  map[string]bool
}

func (s *superseded) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	old := s.old[key]
	s.mu.Unlock()
	if old {
		r.Header.Set("Authorization", "Bearer agk_old")
	}
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	if m := regexp.MustCompile(`"agentId":"([^"]+)","apiKey":"([^"]+)"`).FindStringSubmatch(rec.Body.String()); m != nil {
		s.mu.Lock()
		s.old[s.last[m[1]]] = true
		s.last[m[1]] = m[2]
		s.mu.Unlock()
	}
	maps.Copy(w.Header(), rec.Header())
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}
