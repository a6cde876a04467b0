package conformance_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/controlplane-mock/conformance"
)

// mutant is the reference with one rule broken, by what stands before it.
type mutant struct {
	name string
	// route is a pattern of "METHOD path" for the requests that are meddled with.
	route string
	// before changes a request; after an answer. pass replaces both.
	before func(r *http.Request)
	after  func(r *http.Request, a *answerOf)
	pass   func(w http.ResponseWriter, r *http.Request, next http.Handler)
	// caught are the checks that must fail, by name. beside run too, for what only shows over several.
	caught, beside []string
}

// answerOf is what the reference said, to be changed.
type answerOf struct {
	status int
	header http.Header
	body   []byte
}

// set replaces members of a JSON answer; nil takes one out.
func (a *answerOf) set(with map[string]any) {
	var all map[string]any
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.UseNumber()
	if d.Decode(&all) != nil {
		return
	}
	for k, v := range with {
		if v == nil {
			delete(all, k)
			continue
		}
		all[k] = v
	}
	a.body, _ = json.Marshal(all)
}

func (a *answerOf) ok(body string) {
	a.status, a.body = 200, []byte(body)
	a.header.Set("Content-Type", "application/json")
}

func (a *answerOf) problem(status int, code string) {
	a.status = status
	a.body, _ = json.Marshal(map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code, "detail": "x"})
	a.header.Set("Content-Type", "application/problem+json")
}

func (a *answerOf) coded(code string) bool {
	return bytes.Contains(a.body, []byte(`"code":"`+code+`"`))
}

// wrap puts the mutant before a handler.
func (m mutant) wrap(next http.Handler) http.Handler {
	route := regexp.MustCompile("^(?:" + m.route + ")$")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !route.MatchString(r.Method + " " + r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		if m.pass != nil {
			m.pass(w, r, next)
			return
		}
		if m.before != nil {
			m.before(r)
		}
		if m.after == nil {
			next.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		a := &answerOf{rec.Code, rec.Header().Clone(), rec.Body.Bytes()}
		m.after(r, a)
		a.header.Del("Content-Length")
		maps.Copy(w.Header(), a.header)
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body)
	})
}

// edit changes a request's JSON body.
func edit(r *http.Request, with func(map[string]any)) {
	raw, _ := io.ReadAll(r.Body)
	var all map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&all) == nil && all != nil {
		with(all)
		raw, _ = json.Marshal(all)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
}

func query(r *http.Request, with func(q map[string][]string)) {
	q := r.URL.Query()
	with(q)
	r.URL.RawQuery = q.Encode()
}

// TestMutantsAreCaught breaks one rule at a time and expects the checks that are named for it to fail. A suite that passes a
// broken server is worth nothing.
func TestMutantsAreCaught(t *testing.T) {
	const mutantTTL = 1500 * time.Millisecond
	known := map[string]bool{}
	for _, c := range conformance.Checks() {
		known[c.Name] = true
	}
	caught := map[string]bool{}
	for _, m := range mutants() {
		for _, name := range m.caught {
			if !known[name] {
				t.Errorf("%s: there is no check %q", m.name, name)
			}
			caught[name] = true
		}
	}
	for name := range known {
		if !caught[name] && !uncaught[name] {
			t.Errorf("no mutant is caught by %s: nobody knows that it can fail", name)
		}
		if caught[name] && uncaught[name] {
			t.Errorf("%s is listed as uncaught, and a mutant is caught by it", name)
		}
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 12) // each is a server; they mostly wait
	for _, m := range mutants() {
		s := start(t, server{open: onRedka(t), ttl: mutantTTL, wrap: m.wrap})
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			var names []string
			for _, n := range slices.Concat(m.caught, m.beside) {
				names = append(names, regexp.QuoteMeta(n))
			}
			target := s.target()
			target.Quick, target.Strict = true, true
			if slices.ContainsFunc(m.caught, func(name string) bool { return strings.HasSuffix(name, "-anywhere") }) {
				target.Peers = []string{target.URL} // a peer that isn't another instance is enough to be wrong
			}
			target.Only = regexp.MustCompile("^(?:" + strings.Join(names, "|") + ")$")
			results, err := conformance.Probe(t.Context(), target, nil)
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
			for _, r := range results {
				if slices.Contains(m.caught, r.Name) && r.Status != conformance.Fails {
					t.Errorf("%s: %s says %s (%s); want that it fails", m.name, r.Name, r.Status, r.Detail)
				}
			}
		})
	}
	wg.Wait()
}

func is(code string, f func(*answerOf)) func(*http.Request, *answerOf) {
	return func(_ *http.Request, a *answerOf) {
		if a.coded(code) {
			f(a)
		}
	}
}

func okay(body string) func(*answerOf) { return func(a *answerOf) { a.ok(body) } }
func says(status int, code string) func(*answerOf) {
	return func(a *answerOf) { a.problem(status, code) }
}
func always(f func(*answerOf)) func(*http.Request, *answerOf) {
	return func(_ *http.Request, a *answerOf) { f(a) }
}
func with(m map[string]any) func(*http.Request, *answerOf) {
	return func(_ *http.Request, a *answerOf) {
		if a.status/100 == 2 {
			a.set(m)
		}
	}
}

// routes by what they do.
const (
	rLink      = "POST /agent/v1/link"
	rChallenge = "POST /agent/v1/link/challenge"
	rPoll      = "GET /agent/v1/jobs/next"
	rBeat      = "POST /agent/v1/jobs/[^/]+/heartbeat"
	rComplete  = "POST /agent/v1/jobs/[^/]+/complete"
	rRelease   = "POST /agent/v1/jobs/[^/]+/release"
	rShip      = "POST /agent/v1/jobs/[^/]+/attempts/[^/]+/logs"
	rNext      = "GET /agent/v1/jobs/[^/]+/attempts/[^/]+/logs/next"
	rActivate  = "POST /agent/v1/queries/activate"
	rAnswer    = "POST /agent/v1/queries/[^/]+/answer"
	rAgents    = "[A-Z]+ /agent/v1/.*"
	rSubmit    = "POST /api/v1/jobs"
	rJob       = "GET /api/v1/jobs/[^/]+"
	rCancel    = "POST /api/v1/jobs/[^/]+/cancel"
	rRetry     = "POST /api/v1/jobs/[^/]+/retry"
	rLogs      = "GET /api/v1/jobs/[^/]+/logs"
	rAdmins    = "[A-Z]+ /api/v1/.*"
	rAsk       = "POST /api/v1/queries"
	rTokens    = "POST /api/v1/enrolment-tokens"
	rAgent     = "GET /api/v1/agents/[^/]+"
	rVerb      = "POST /api/v1/agents/[^/]+/[a-z-]+"
	rAll       = ".*"
)
