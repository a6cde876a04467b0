package adminclient_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
)

// TestCalls holds each method's request to protocol §6.
func TestCalls(t *testing.T) {
	half := 0.5
	ctx := t.Context()
	for want, call := range map[string]func(*adminclient.Client) error{
		`POST /api/v1/jobs {"type":"x","payload":{"a":1},"labels":{"gpu":"1"},"maxAttempts":2,"retryOn":["lost","failed"],"timeoutMs":1500,"idempotencyKey":"k"}`: func(c *adminclient.Client) error {
			_, created, err := c.Submit(ctx, adminclient.Submission{Type: "x", Payload: json.RawMessage(`{"a":1}`), Labels: map[string]string{"gpu": "1"},
				MaxAttempts: 2, RetryOn: []protocol.Outcome{protocol.Lost, protocol.Failed}, Timeout: 1500, IdempotencyKey: "k"})
			if created {
				t.Error("200 was taken for 201")
			}
			return err
		},
		`GET /api/v1/jobs?after=z&limit=5&status=pending&type=x `: func(c *adminclient.Client) error {
			_, err := c.Jobs(ctx, adminclient.JobFilter{Status: "pending", Type: "x", Limit: 5, After: "z"})
			return err
		},
		`GET /api/v1/jobs/j%2F1 `:                        func(c *adminclient.Client) error { _, err := c.Job(ctx, "j/1"); return err },
		`POST /api/v1/jobs/j/cancel {"reason":"enough"}`: func(c *adminclient.Client) error { _, err := c.Cancel(ctx, "j", "enough"); return err },
		`POST /api/v1/jobs/j/retry `:                     func(c *adminclient.Client) error { _, err := c.Retry(ctx, "j"); return err },
		`GET /api/v1/agents?limit=3 `:                    func(c *adminclient.Client) error { _, err := c.Agents(ctx, "", 3); return err },
		`GET /api/v1/agents/a `:                          func(c *adminclient.Client) error { _, err := c.Agent(ctx, "a"); return err },
		`POST /api/v1/agents/a/revoke `:                  func(c *adminclient.Client) error { _, err := c.Revoke(ctx, "a"); return err },
		`POST /api/v1/agents/a/restore `:                 func(c *adminclient.Client) error { _, err := c.Restore(ctx, "a"); return err },
		`POST /api/v1/agents/a/expire-key `:              func(c *adminclient.Client) error { _, err := c.ExpireKey(ctx, "a"); return err },
		`POST /api/v1/enrolment-tokens {"ttlMs":60000,"maxUses":2,"agentId":"a"}`: func(c *adminclient.Client) error {
			_, err := c.Token(ctx, adminclient.TokenRequest{TTL: 60000, MaxUses: 2, AgentID: "a"})
			return err
		},
		`POST /api/v1/queries {"type":"t","connector":"c","query":{"q":1},"timeoutMs":100}`: func(c *adminclient.Client) error {
			_, err := c.Ask(ctx, adminclient.Query{Type: "t", Connector: "c", Query: json.RawMessage(`{"q":1}`), Timeout: 100})
			return err
		},
		`GET /readyz `: func(c *adminclient.Client) error { return c.Ready(ctx) },
		`PUT /mock/v1/faults {"rules":[{"path":"/agent/**","mode":"hang","probability":0.5}]}`: func(c *adminclient.Client) error {
			return c.SetFaults(ctx, []faults.Rule{{Path: "/agent/**", Mode: faults.Hang, Probability: &half}})
		},
		`PUT /mock/v1/faults {"rules":[]}`: func(c *adminclient.Client) error { return c.SetFaults(ctx, nil) },
		`GET /mock/v1/faults `:             func(c *adminclient.Client) error { _, err := c.Faults(ctx); return err },
		`DELETE /mock/v1/faults `:          func(c *adminclient.Client) error { return c.ClearFaults(ctx) },
		`PUT /mock/v1/outage {"mode":"refuse","forMs":2000,"partition":true}`: func(c *adminclient.Client) error {
			return c.Outage(ctx, faults.OutageSpec{Mode: faults.Refuse, For: 2000, Partition: true})
		},
		`DELETE /mock/v1/outage `: func(c *adminclient.Client) error { return c.EndOutage(ctx) },
	} {
		var got string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got = r.Method + " " + r.RequestURI + " " + string(body)
			if auth := r.Header.Get("Authorization"); auth != "Bearer t" {
				t.Errorf("%s: Authorization %q", got, auth)
			}
			io.WriteString(w, "{}")
		}))
		if err := call(client(t, srv.URL)); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		srv.Close()
	}
}

func TestErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		status      int
		kind, body  string
		header      string
		code        protocol.Code
		unreachable bool
		text        string
		after       time.Duration
	}{
		"problem":        {409, "application/problem+json", `{"code":"conflict","detail":"settled"}`, "", "conflict", false, "look at job j: settled (conflict)", 0},
		"with a charset": {429, "application/problem+json; charset=utf-8", `{"code":"throttled","title":"slow down"}`, "7", "throttled", false, "slow down", 7 * time.Second},
		"without a code": {404, "application/problem+json", `{"detail":"x"}`, "", "", true, "isn't a control plane's answer", 0},
		"a page":         {404, "text/html", "<html>", "", "", true, "isn't a control plane's answer", 0},
		"a page as 200":  {200, "text/html", "<html>", "", "", true, "isn't a control plane's answer", 0},
		"other JSON":     {200, "application/json", "[]", "", "", true, "doesn't decode", 0},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.kind)
				if tc.header != "" {
					w.Header().Set("Retry-After", tc.header)
				}
				w.WriteHeader(tc.status)
				io.WriteString(w, tc.body)
			}))
			defer srv.Close()
			_, err := client(t, srv.URL).Job(t.Context(), "j")
			if got := adminclient.CodeOf(err); got != tc.code {
				t.Errorf("code: got %q, want %q", got, tc.code)
			}
			if got := adminclient.IsUnreachable(err); got != tc.unreachable {
				t.Errorf("unreachable: got %v, want %v", got, tc.unreachable)
			}
			if err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got %v, want %q in it", err, tc.text)
			}
			if e, ok := errors.AsType[*adminclient.Error](err); !ok || e.RetryAfter != tc.after {
				t.Errorf("retry after: got %+v, want %v", err, tc.after)
			}
		})
	}
}

func TestNewChecksTheURL(t *testing.T) {
	for _, url := range []string{"", "localhost:7070", "ftp://h", "http://", "://"} {
		if _, err := adminclient.New(adminclient.Config{URL: url}); err == nil {
			t.Errorf("%q was taken", url)
		}
	}
}
