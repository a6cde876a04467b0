// Package openapitest holds real requests and answers against protocol.OpenAPI, in tests: wrap a
// server's handler, and every exchange that it has is checked.
package openapitest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"agentd/agent/protocol"
)

// Checker reports to t every exchange that isn't as the description has it.
type Checker struct {
	t      testing.TB
	router routers.Router
	all    []string // every "METHOD operation"

	mu   sync.Mutex
	seen map[string]bool // guarded by mu: "operation status"
}

// New loads the description and checks it by itself.
func New(t testing.TB) *Checker {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData([]byte(protocol.OpenAPI))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	c := &Checker{t: t, router: router, seen: map[string]bool{}}
	for path, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			for status := range op.Responses.Map() {
				c.all = append(c.all, path+" "+op.OperationID+" "+status)
			}
		}
	}
	return c
}

// Unseen are the answers that the description has below prefix and no exchange has shown:
// "operation status".
func (c *Checker) Unseen(prefix string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var unseen []string
	for _, one := range c.all {
		path, answer, _ := strings.Cut(one, " ")
		if strings.HasPrefix(path, prefix) && !c.seen[answer] {
			unseen = append(unseen, answer)
		}
	}
	return unseen
}

// Wrap checks what passes through h. A request that the server refuses (4xx) may be as wrong as it likes.
func (c *Checker) Wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			h.ServeHTTP(w, r) // cut short: nothing to check
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		tee := &tee{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(tee, r)
		if r.Context().Err() == nil {
			r.Body = io.NopCloser(bytes.NewReader(body))
			c.check(r, tee)
		}
	})
}

func (c *Checker) check(r *http.Request, answer *tee) {
	at := fmt.Sprintf("%s %s: %d", r.Method, r.URL.Path, answer.status)
	route, params, err := c.router.FindRoute(r)
	if err != nil {
		if answer.status < 400 {
			c.t.Errorf("openapi: %s: %v", at, err)
		}
		return
	}
	options := &openapi3filter.Options{AuthenticationFunc: authenticated, IncludeResponseStatus: true, MultiError: true}
	if strings.Contains(r.Header.Get("Content-Type"), "ndjson") {
		options.ExcludeRequestBody = true // bytes, checked by the record codec's own tests
	}
	in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: options}
	if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil && answer.status < 400 {
		c.t.Errorf("openapi: %s: the request: %v", at, err)
	}
	responseOptions := *options
	if kind := answer.Header().Get("Content-Type"); !strings.Contains(kind, "json") || strings.Contains(kind, "ndjson") {
		responseOptions.ExcludeResponseBody = true
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: answer.status, Header: answer.Header(),
		Body: io.NopCloser(bytes.NewReader(answer.body.Bytes())), Options: &responseOptions,
	}
	if err := openapi3filter.ValidateResponse(r.Context(), out); err != nil {
		c.t.Errorf("openapi: %s: the answer: %v", at, err)
	}
	if answer.status >= 400 && answer.Header().Get("Content-Type") != "application/problem+json" {
		c.t.Errorf("openapi: %s: an error as %q, not application/problem+json", at, answer.Header().Get("Content-Type"))
	}
	status := strconv.Itoa(answer.status)
	if route.Operation.Responses.Value(status) == nil {
		status = "default"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[route.Operation.OperationID+" "+status] = true
}

// authenticated wants a bearer where the description does; whether it is good is the server's to say.
func authenticated(_ context.Context, in *openapi3filter.AuthenticationInput) error {
	if !strings.HasPrefix(in.RequestValidationInput.Request.Header.Get("Authorization"), "Bearer ") {
		return fmt.Errorf("no bearer for %s", in.SecuritySchemeName)
	}
	return nil
}

// tee writes an answer through and keeps a copy.
type tee struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (t *tee) WriteHeader(status int) {
	t.status = status
	t.ResponseWriter.WriteHeader(status)
}

func (t *tee) Write(p []byte) (int, error) {
	t.body.Write(p)
	return t.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (t *tee) Unwrap() http.ResponseWriter { return t.ResponseWriter }
