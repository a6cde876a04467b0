package conformance_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

func logMutants() []mutant {
	tails := &overlapping{next: map[string]int{}}
	return []mutant{
		{name: "loses last lines", route: rLogs, after: cutOut(`[^\n]*\n?$`), caught: []string{
			"logs/append", "logs/encodings", "logs/several-frames", "logs/twice", "logs/gap", "logs/records", "logs/after-completion", "logs/after-lease-lost", "admin/logs-text", "admin/logs-follow", "logs/durable",
		}},
		{name: "appends what overlaps", route: rShip, pass: tails.serve, caught: []string{"logs/overlap", "logs/twice", "logs/overlap-gap", "logs/durable"}},
		{name: "always begins at 0", route: rNext, after: with(map[string]any{"next": 0}), caught: []string{"logs/next"}},
		{name: "knows every attempt", route: rShip + "|" + rNext, after: is("not_found", okay(`{"next":0}`)), caught: []string{"jobs/fencing-logs", "logs/lease-token", "logs/next"}},
		{name: "asks for no digest", route: rShip, before: func(r *http.Request) { body(r, peek(r)) }, caught: []string{"logs/digest"}},
		{name: "takes no zstd", route: rShip, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Header.Get("Content-Encoding") == "zstd" {
				r.Header.Set("Content-Encoding", "x-unknown")
			}
			next.ServeHTTP(w, r)
		}, caught: []string{"logs/encodings", "logs/several-frames", "logs/undecodable"}},
		{name: "guesses encodings", route: rShip, before: func(r *http.Request) {
			switch r.Header.Get("Content-Encoding") {
			case "br", "deflate", "x-unknown":
				r.Header.Set("Content-Encoding", "identity")
			}
		}, caught: []string{"logs/encodings-offered"}},
		{name: "calls the corrupt invalid", route: rShip, after: is("corrupt", says(400, "invalid")), caught: []string{"logs/undecodable", "logs/digest"}},
		{name: "believes first when count is 0", route: rShip, after: func(r *http.Request, a *answerOf) {
			if q := r.URL.Query(); q.Get("count") == "0" && a.status == 200 {
				a.ok(`{"next":` + q.Get("first") + `}`)
			}
		}, caught: []string{"logs/count-zero", "logs/final-alone"}},
		{name: "has defaults for first and count", route: rShip, before: func(r *http.Request) {
			query(r, func(q map[string][]string) {
				for name, value := range map[string]string{"first": "0", "count": "1"} {
					if len(q[name]) == 0 {
						q[name] = []string{value}
					}
				}
			})
		}, caught: []string{"logs/first-and-count"}},
		{name: "acknowledges what it hasn't got", route: rShip, after: is("log_gap", okay(`{"next":100}`)), caught: []string{"logs/gap"}},
		{name: "stores what is good of a body", route: rShip, pass: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			raw := peek(r)
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			if rec.Code == 400 && strings.Count(raw, "\n") > 1 {
				good := raw[:strings.LastIndexByte(raw[:len(raw)-1], '\n')+1]
				again := r.Clone(r.Context())
				body(again, good)
				query(again, func(q map[string][]string) { q["count"] = []string{strconv.Itoa(strings.Count(good, "\n"))} })
				next.ServeHTTP(httptest.NewRecorder(), again)
			}
			copyTo(w, rec)
		}, caught: []string{"logs/whole-or-not"}},
		{name: "ignores final", route: rShip, before: func(r *http.Request) { query(r, func(q map[string][]string) { delete(q, "final") }) }, caught: []string{"logs/final", "logs/final-alone"}},
		{name: "has one stream", route: rLogs, after: replace(`"s":"err"`, `"s":"out"`), caught: []string{"logs/records"}},
		{name: "takes any record", route: rShip, after: is("invalid", okay(`{"next":1}`)), caught: []string{"logs/record-members", "logs/record-required", "logs/record-bytes", "logs/whole-or-not"}},
		{name: "forgets parts", route: rShip, before: func(r *http.Request) { body(r, strings.ReplaceAll(peek(r), `,"part":true`, "")) }, caught: []string{"logs/record-part-eof", "admin/logs-text", "logs/records"}},
		{name: "forgets why", route: rLogs, after: cutOut(`,"reason":"[A-Za-z]+"`), caught: []string{"logs/record-gap", "logs/record-dead-letter", "logs/records", "logs/overlap-gap"}},
		{name: "doesn't say whose gap it is", route: rLogs, after: replace(`"s":"agent"`, `"s":"out"`), caught: []string{"logs/record-gap-bare"}},
		{name: "wants no late logs", route: rShip + "|" + rComplete, pass: noLateLogs(), caught: []string{"logs/after-completion", "jobs/complete-log-records", "admin/logs-follow"}},
		{name: "reads one attempt", route: rLogs, before: func(r *http.Request) { query(r, func(q map[string][]string) { delete(q, "attempt") }) }, caught: []string{"logs/of-two-attempts", "admin/logs-text"}},
		{name: "reads from the start", route: rLogs, before: func(r *http.Request) { query(r, func(q map[string][]string) { delete(q, "from") }) }, caught: []string{"admin/logs-from"}},
		{name: "has no empty logs", route: rLogs, after: func(_ *http.Request, a *answerOf) {
			if len(a.body) == 0 {
				a.problem(404, "not_found")
			}
		}, caught: []string{"admin/logs-none"}},
		{name: "doesn't follow", route: rLogs, before: func(r *http.Request) { query(r, func(q map[string][]string) { delete(q, "follow") }) }, caught: []string{"admin/logs-follow", "admin/logs-follow-unknown"}},
	}
}

func copyTo(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
	maps.Copy(w.Header(), rec.Header())
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}

// overlapping moves batches that begin below next up to it.
type overlapping struct {
	mu   sync.Mutex
	next map[string]int
}

var nextOf = regexp.MustCompile(`"next":(\d+)`)

func (o *overlapping) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	o.mu.Lock()
	defer o.mu.Unlock()
	query(r, func(q map[string][]string) {
		if first, err := strconv.Atoi(q["first"][0]); err == nil && first < o.next[r.URL.Path] {
			q["first"] = []string{strconv.Itoa(o.next[r.URL.Path])}
		}
	})
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	if m := nextOf.FindStringSubmatch(rec.Body.String()); m != nil && rec.Code == 200 {
		o.next[r.URL.Path], _ = strconv.Atoi(m[1])
	}
	copyTo(w, rec)
}

// noLateLogs refuses logs of jobs that were completed.
func noLateLogs() func(http.ResponseWriter, *http.Request, http.Handler) {
	var done sync.Map
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		job := strings.Split(r.URL.Path, "/")[4]
		if strings.HasSuffix(r.URL.Path, "/complete") {
			done.Store(job, true)
		} else if _, late := done.Load(job); late {
			a := &answerOf{header: w.Header()}
			a.problem(409, "lease_lost")
			w.WriteHeader(a.status)
			_, _ = w.Write(a.body)
			return
		}
		next.ServeHTTP(w, r)
	}
}
