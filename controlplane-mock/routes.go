package controlplane

import (
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
)

// route is one path with what it does for each method.
type route struct {
	path string
	by   map[string]endpoint
}

// agentRoutes are the protocol's, and adminRoutes the reference control plane's own. Tests walk both.
func (s *Server) agentRoutes() []route {
	return []route{
		{"/agent/v1/link/challenge", on("POST", forChallenge(s.challenge))},
		{"/agent/v1/link", on("POST", forLink(s.link))},
		{"/agent/v1/jobs/next", on("GET", asAgent(s.nextJob))},
		{"/agent/v1/jobs/{id}/heartbeat", on("POST", asAgent(s.heartbeat))},
		{"/agent/v1/jobs/{id}/complete", on("POST", asAgent(s.complete))},
		{"/agent/v1/jobs/{id}/release", on("POST", asAgent(s.release))},
		{"/agent/v1/jobs/{id}/attempts/{n}/logs", on("POST", asAgent(s.appendLog))},
		{"/agent/v1/jobs/{id}/attempts/{n}/logs/next", on("GET", asAgent(s.logNext))},
		{"/agent/v1/queries/activate", on("POST", asAgent(s.activate))},
		{"/agent/v1/queries/{id}/answer", on("POST", asAgent(s.answerQuery))},
	}
}

func (s *Server) adminRoutes() []route {
	jobs := on("GET", asAdmin(s.listJobs))
	jobs["POST"] = asAdmin(s.submit)
	return []route{
		{"/api/v1/jobs", jobs},
		{"/api/v1/jobs/{id}", on("GET", asAdmin(s.getJob))},
		{"/api/v1/jobs/{id}/cancel", on("POST", asAdmin(s.cancelJob))},
		{"/api/v1/jobs/{id}/retry", on("POST", asAdmin(s.retryJob))},
		{"/api/v1/jobs/{id}/logs", on("GET", asAdmin(s.readLog))},
		{"/api/v1/agents", on("GET", asAdmin(s.listAgents))},
		{"/api/v1/agents/{id}", on("GET", asAdmin(s.getAgent))},
		{"/api/v1/agents/{id}/revoke", on("POST", asAdmin(s.revokeAgent))},
		{"/api/v1/agents/{id}/restore", on("POST", asAdmin(s.restoreAgent))},
		{"/api/v1/agents/{id}/expire-key", on("POST", asAdmin(s.expireKey))},
		{"/api/v1/enrolment-tokens", on("POST", asAdmin(s.mintToken))},
		{"/api/v1/queries", on("POST", asAdmin(s.ask))},
		{"/metrics", on("GET", s.serveMetrics)},
	}
}

func (s *Server) healthRoutes() []route {
	return []route{
		{"/healthz", on("GET", s.healthz)},
		{"/readyz", on("GET", s.readyz)},
	}
}

func on(method string, e endpoint) map[string]endpoint { return map[string]endpoint{method: e} }

// handler serves routes, and answers everything else in the protocol's own form: http.ServeMux alone would answer
// an unknown method in plain text and send a path with // elsewhere.
func (s *Server) handler(routes ...[]route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range slices.Concat(routes...) {
		mux.HandleFunc(r.path, func(w http.ResponseWriter, req *http.Request) {
			e, ok := r.by[req.Method]
			if !ok {
				e = methodNotAllowed(r.by)
			}
			s.serve(w, req, r.path, e)
		})
	}
	unknown := func(*call) error { return notFound("no such route") }
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, "unknown", unknown) })
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if p := req.URL.Path; req.Method == http.MethodConnect || !strings.HasPrefix(p, "/") || path.Clean(p) != strings.TrimSuffix(p, "/") && p != "/" {
			s.serve(w, req, "unknown", unknown)
			return
		}
		mux.ServeHTTP(w, req)
	})
}

func methodNotAllowed(by map[string]endpoint) endpoint {
	return func(*call) error {
		p := newProblem(http.StatusMethodNotAllowed, "invalid", "this route doesn't take that method")
		p.header = map[string]string{"Allow": strings.Join(slices.Sorted(maps.Keys(by)), ", ")}
		return p
	}
}
