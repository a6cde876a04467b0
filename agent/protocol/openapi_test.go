package protocol_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/agent/protocol/openapitest"
)

const linkAnswer = `{"agentId":"agt_1","apiKey":"key","apiKeyExpiresInMs":3600000,"leaseTtlMs":10000,"heartbeatMs":3000,"pollWaitMs":30000,` +
	`"maxLogBody":8388608,"logEncodings":["zstd","gzip","snappy"],"serverId":"srv_1","later":{"unknown":true}}`

// answers are good answers to each call.
var answers = map[string]string{
	"POST /agent/v1/link/challenge":                  `200 {"nonce":"n","serverId":"srv_1","expiresInMs":60000}`,
	"POST /agent/v1/link":                            `201 ` + linkAnswer,
	"GET /agent/v1/jobs/next":                        `200 {"id":"job_1","type":"extract","attempt":1,"leaseToken":"lt","leaseTtlMs":10000,"payload":{"a":[1]},"env":{"K":"V"},"timeoutMs":3600000,"graceMs":10000,"exclusive":false,"createdAt":"2026-01-01T00:00:00Z"}`,
	"POST /agent/v1/jobs/{id}/heartbeat":             `200 {"leaseTtlMs":10000,"heartbeatMs":3000,"cancel":{"reason":"why","graceMs":5000}}`,
	"POST /agent/v1/jobs/{id}/complete":              `200 {}`,
	"POST /agent/v1/jobs/{id}/release":               `200 {}`,
	"POST /agent/v1/jobs/{id}/attempts/{n}/logs":     `200 {"next":12}`,
	"GET /agent/v1/jobs/{id}/attempts/{n}/logs/next": `200 {"next":12}`,
	"POST /agent/v1/queries/activate":                `200 {"queries":[{"id":"q_1","leaseToken":"lt","type":"t","connector":"c","deadline":1732888888123,"remainingMs":4900,"query":{"term":"x"}}]}`,
	"POST /agent/v1/queries/{id}/answer":             `204 `,
}

// everyCall makes each call of the protocol once, as an agent does.
func everyCall(t *testing.T, c *protocol.Client) map[string]error {
	t.Helper()
	ctx, done := t.Context(), map[string]error{}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	challenge, err := c.Challenge(ctx, protocol.ChallengeRequest{PublicKey: key.Public().(ed25519.PublicKey)})
	done["challenge"] = err
	r := protocol.LinkRequest{Name: "host-1", Types: []string{"extract"}, Version: "1.0.0", OS: "linux", Arch: "amd64", ProcessID: "boot.process", Start: true}
	protocol.SignLink(&r, key, protocol.Challenge{Nonce: "n" + challenge.Nonce, ServerID: challenge.ServerID})
	_, _, done["link"] = c.Link(ctx, "token", r)
	_, done["nextJob"] = c.NextJob(ctx, protocol.PollRequest{PollID: "p-1", Wait: time.Second, Types: []string{"extract", "load"}})
	_, done["heartbeat"] = c.Heartbeat(ctx, "job_1", time.Second, protocol.HeartbeatRequest{Attempt: 1, LeaseToken: "lt", SpooledBytes: 5, OldestUnshipped: 7})
	done["complete"] = c.Complete(ctx, "job_1", protocol.Completion{
		Attempt: 1, LeaseToken: "lt", Outcome: protocol.Failed, ExitCode: -1, Signal: "SIGKILL", Error: "e",
		Result: json.RawMessage(`{"rows":3}`), LogRecords: 12, FinishedAt: time.Unix(1732888888, 0),
	})
	done["release"] = c.Release(ctx, "job_1", protocol.Release{Attempt: 1, LeaseToken: "lt", Reason: "draining"})
	_, done["shipLog"] = c.ShipLog(ctx, ref, protocol.LogBody{First: 10, Count: 2, Final: true, Encoding: "identity", Frames: [][]byte{[]byte("{}\n{}\n")}})
	_, done["logNext"] = c.LogNext(ctx, ref)
	_, done["activate"] = c.Activate(ctx, protocol.Activation{Type: "t", Worker: "host-1", Connectors: []string{"c"}, MaxQueries: 4, Wait: 1000})
	done["answer"] = c.Answer(ctx, "q_1", protocol.Answer{Worker: "host-1", LeaseToken: "lt", Page: &protocol.Page{Items: []json.RawMessage{[]byte(`{"a":1}`)}}})
	return done
}

func TestEveryCallIsAsOpenAPIHasIt(t *testing.T) {
	check := openapitest.New(t)
	status, code, next := 0, protocol.Code(""), "" // of the problem to answer with; 0 = the good answer
	mux := http.NewServeMux()
	for pattern, answer := range answers {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if status != 0 {
				if status == 401 {
					w.Header().Set("WWW-Authenticate", "Bearer")
				}
				problem(w, status, code, next)
				return
			}
			var good int
			fmt.Sscan(answer[:3], &good)
			if good != 204 {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(good)
			io.WriteString(w, answer[4:])
		})
	}
	server := httptest.NewServer(check.Wrap(mux))
	defer server.Close()
	client := newClient(t, protocol.ClientConfig{Server: server.URL, Credential: func() string { return "key" }})

	for op, err := range everyCall(t, client) {
		if err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
	for _, p := range []struct {
		status int
		code   protocol.Code
		next   string
	}{
		{401, protocol.CodeUnauthenticated, ""},
		{409, protocol.CodeLogGap, `,"next":3`},
		{410, protocol.CodeGone, ""},
		{503, protocol.CodeUnavailable, ""},
	} {
		status, code, next = p.status, p.code, p.next
		for op, err := range everyCall(t, client) {
			if op != "link" && protocol.CodeOf(err) != p.code { // link isn't sent when the challenge had no serverId
				t.Errorf("%s: got %v, want %s", op, err, p.code)
			}
		}
	}
	want := []string{"link 200", "nextJob 204"} // shown in other tests
	got := check.Unseen("/agent/v1/")
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("answers that no call has shown: got %v, want %v", got, want)
	}
}

// complaints is a testing.TB that counts what would fail a test.
type complaints struct {
	testing.TB
	n int
}

func (c *complaints) Errorf(string, ...any) { c.n++ }

func TestTheCheckNoticesWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		status int
		kind   string
		want   int
	}{
		"good":                      {`{"next":1}`, 200, "application/json", 0},
		"another name":              {`{"Next":1}`, 200, "application/json", 1},
		"negative":                  {`{"next":-1}`, 200, "application/json", 1},
		"an unknown code":           {`{"type":"","title":"","status":404,"code":"nope"}`, 404, "application/problem+json", 1},
		"an error that is plain":    {`not found`, 404, "text/plain", 1},
		"a 401 that doesn't say so": {`{"type":"","title":"","status":401,"code":"unauthenticated"}`, 401, "application/problem+json", 1},
	} {
		got := &complaints{TB: t}
		h := openapitest.New(got).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(c.status)
			io.WriteString(w, c.answer)
		}))
		r := httptest.NewRequest(http.MethodGet, "/agent/v1/jobs/job_1/attempts/1/logs/next", nil)
		r.Header.Set("Agentd-Lease-Token", "lt")
		r.Header.Set("Authorization", "Bearer key")
		h.ServeHTTP(httptest.NewRecorder(), r)
		if got.n != c.want {
			t.Errorf("%s: got %d complaints, want %d", name, got.n, c.want)
		}
	}
}
