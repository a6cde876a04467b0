package conformance

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const secErrors = "Errors"

var errorChecks = []Check{
	{"errors/method", secErrors, []string{"| `invalid` | 400, 405, 422 |"}, wrongMethods, 0},
	{"errors/media-type", secErrors, []string{"| `invalid` | 415 |"}, wrongMediaTypes, 0},
	{"errors/problems", secErrors, []string{"Every error answer is `application/problem+json` (RFC 9457) with a `code`"}, allProblems, last},
	{"errors/codes", secErrors, []string{"The codes, the statuses they travel with, and what the agent does"}, func(p *probe) { p.s.verdict(p, ruleCode) }, last},
	{"errors/log-gap-next", secErrors, []string{"| `log_gap` | 409 | rewind | `next` (required) says where"}, func(p *probe) { p.s.verdict(p, ruleGapNext) }, last},
	{"errors/retry-after", secErrors, []string{"**`Retry-After`** is a number of seconds, or an HTTP-date"}, func(p *probe) { p.s.verdict(p, ruleRetryAfter) }, last},
}

// The rules that every answer is held to, whatever check asked for it.
const (
	ruleJSONBody   = "the body of a success"
	ruleProblem    = "the form of an error"
	ruleCode       = "a code and its status"
	ruleGapNext    = "next of a log_gap"
	ruleRetryAfter = "Retry-After"
)

// statuses are those that each code travels with.
var statuses = map[string][]int{
	"invalid": {400, 405, 415, 422}, "corrupt": {400}, "unauthenticated": {401}, "revoked": {403}, "identity_conflict": {409},
	"not_found": {404}, "lease_lost": {409}, "log_gap": {409}, "too_large": {413}, "throttled": {429}, "unavailable": {503},
	"internal": {500}, "gone": {410}, "fenced": {409}, "busy": {429}, "timeout": {504}, "conflict": {409},
}

// observe holds an answer to the rules for all answers. What faults and health checks answer is not the protocol's.
func (s *session) observe(r reply) {
	_, path, _ := strings.Cut(r.op, " ")
	path, _, _ = strings.Cut(path, "?")
	agents, admins := strings.HasPrefix(path, "/agent/v1/"), strings.HasPrefix(path, "/api/v1/")
	if !agents && !admins || r.p.deaf {
		return
	}
	note := func(rule, format string, args ...any) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.offences[rule]) < 5 {
			s.offences[rule] = append(s.offences[rule], r.String()+": "+fmt.Sprintf(format, args...))
		}
	}
	if after := r.header.Get("Retry-After"); after != "" {
		n, err := strconv.Atoi(after)
		if _, dateErr := http.ParseTime(after); (err != nil || n < 0) && dateErr != nil {
			note(ruleRetryAfter, "Retry-After is %q", after)
		}
	}
	switch {
	case r.status == 204:
		if len(r.body) > 0 {
			note(ruleJSONBody, "a 204 has a body")
		}
	case r.status >= 200 && r.status < 300:
		media, _, _ := mime.ParseMediaType(r.header.Get("Content-Type"))
		log := admins && strings.HasSuffix(path, "/logs")
		if !log && (media != "application/json" || !json.Valid(r.body)) {
			note(ruleJSONBody, "want JSON; the Content-Type is %q", r.header.Get("Content-Type"))
		}
	default:
		s.observeError(r, note, path == "/api/v1/queries")
	}
}

func (s *session) observeError(r reply, note func(rule, format string, args ...any), asking bool) {
	media, _, _ := mime.ParseMediaType(r.header.Get("Content-Type"))
	var body struct {
		Type   *string `json:"type"`
		Title  *string `json:"title"`
		Status *int    `json:"status"`
		Code   *string `json:"code"`
		Next   *int64  `json:"next"`
	}
	if media != "application/problem+json" || json.Unmarshal(r.body, &body) != nil || body.Code == nil {
		note(ruleProblem, "want a problem with a code; the Content-Type is %q", r.header.Get("Content-Type"))
		return
	}
	if body.Type == nil || body.Title == nil || body.Status == nil || *body.Status != r.status {
		note(ruleProblem, "type, title and the answer's own status are wanted")
	}
	if r.status == 401 && r.header.Get("WWW-Authenticate") == "" {
		note(ruleProblem, "a 401 without WWW-Authenticate")
	}
	// What a connector reports is its own word, and travels as 502.
	if (!asking || r.status != 502) && !slices.Contains(statuses[*body.Code], r.status) {
		note(ruleCode, "%q doesn't travel with %d", *body.Code, r.status)
	}
	if *body.Code == "log_gap" && body.Next == nil {
		note(ruleGapNext, "log_gap without next")
	}
}

// verdict fails a check if any answer of the whole run has broken its rule.
func (s *session) verdict(p *probe, rule string) {
	s.mu.Lock()
	offences := slices.Clone(s.offences[rule])
	s.mu.Unlock()
	p.assert(len(offences) == 0, "%s", strings.Join(offences, "\n"))
}

// allProblems asks for some errors besides, for a run in which no other check did.
func allProblems(p *probe) {
	a := p.agent()
	p.agentCall("GET", "nothing", a.apiKey, nil)
	p.agentCall("PATCH", "jobs/next", a.apiKey, nil)
	p.agentCall("POST", "jobs/unknown/heartbeat", a.apiKey, map[string]any{"attempt": 1, "leaseToken": "x"})
	p.agentCall("POST", "link", "", map[string]any{})
	p.adminCall("GET", "nothing", nil)
	p.adminCall("GET", "jobs/unknown", nil)
	p.s.verdict(p, ruleProblem)
}

func wrongMethods(p *probe) {
	a := p.agent()
	for _, route := range []string{"GET link", "GET link/challenge", "POST jobs/next", "PUT jobs/x/heartbeat", "GET jobs/x/complete", "DELETE jobs/x/attempts/1/logs", "POST jobs/x/attempts/1/logs/next", "GET queries/activate"} {
		method, path, _ := strings.Cut(route, " ")
		p.agentCall(method, path, a.apiKey, nil).refused(405, "invalid")
	}
	p.adminCall("DELETE", "jobs", nil).refused(405, "invalid")
}

func wrongMediaTypes(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "application/xml"} {
		p.agentCall("POST", "jobs/"+l.job+"/heartbeat?waitMs=0", a.apiKey, []byte("{}"), "Content-Type: "+media).refused(415, "invalid")
		a.ship(l, batch{count: 1, body: lines(0, 1), contentType: media}).refused(415, "invalid")
	}
	a.beat(l, 0).must(200)
}
