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
	path    string
	by      map[string]endpoint
	inPlace bool // its endpoints may wait within themselves, see serve
}

// agentRoutes are the protocol's, and adminRoutes the reference control plane's own. Tests walk both.
func (s *Server) agentRoutes() []route {
	return []route{
		{path: "/agent/v1/link/challenge", by: on("POST", forChallenge(s.challenge))},
		{path: "/agent/v1/link", by: on("POST", forLink(s.link))},
		{path: "/agent/v1/jobs/next", by: on("GET", asAgent(s.nextJob))},
		{path: "/agent/v1/jobs/{id}/heartbeat", by: on("POST", asAgent(s.heartbeat))},
		{path: "/agent/v1/jobs/{id}/complete", by: on("POST", asAgent(s.complete))},
		{path: "/agent/v1/jobs/{id}/release", by: on("POST", asAgent(s.release))},
		{path: "/agent/v1/jobs/{id}/attempts/{n}/logs", by: on("POST", asAgent(s.appendLog))},
		{path: "/agent/v1/jobs/{id}/attempts/{n}/logs/next", by: on("GET", asAgent(s.logNext))},
		{path: "/agent/v1/queries/activate", by: on("POST", asAgent(s.activate)), inPlace: true},
		{path: "/agent/v1/queries/{id}/answer", by: on("POST", asAgent(s.answerQuery))},
	}
}

func (s *Server) adminRoutes() []route {
	jobs := on("GET", asAdmin(s.listJobs))
	jobs["POST"] = asAdmin(s.submit)
	return []route{
		{path: "/api/v1/jobs", by: jobs},
		{path: "/api/v1/jobs/{id}", by: on("GET", asAdmin(s.getJob))},
		{path: "/api/v1/jobs/{id}/cancel", by: on("POST", asAdmin(s.cancelJob))},
		{path: "/api/v1/jobs/{id}/retry", by: on("POST", asAdmin(s.retryJob))},
		{path: "/api/v1/jobs/{id}/logs", by: on("GET", asAdmin(s.readLog)), inPlace: true},
		{path: "/api/v1/agents", by: on("GET", asAdmin(s.listAgents))},
		{path: "/api/v1/agents/{id}", by: on("GET", asAdmin(s.getAgent))},
		{path: "/api/v1/agents/{id}/revoke", by: on("POST", asAdmin(s.revokeAgent))},
		{path: "/api/v1/agents/{id}/restore", by: on("POST", asAdmin(s.restoreAgent))},
		{path: "/api/v1/agents/{id}/expire-key", by: on("POST", asAdmin(s.expireKey))},
		{path: "/api/v1/enrolment-tokens", by: on("POST", asAdmin(s.mintToken))},
		{path: "/api/v1/queries", by: on("POST", asAdmin(s.ask)), inPlace: true},
		{path: "/metrics", by: on("GET", s.serveMetrics)},
	}
}

func (s *Server) healthRoutes() []route {
	return []route{
		{path: "/healthz", by: on("GET", s.healthz)},
		{path: "/readyz", by: on("GET", s.readyz)},
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
			s.serve(w, req, r.path, e, r.inPlace)
		})
	}
	unknown := func(*call) error { return notFound("no such route") }
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, "unknown", unknown, false) })
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if p := req.URL.Path; req.Method == http.MethodConnect || !strings.HasPrefix(p, "/") || path.Clean(p) != strings.TrimSuffix(p, "/") && p != "/" {
			s.serve(w, req, "unknown", unknown, false)
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
