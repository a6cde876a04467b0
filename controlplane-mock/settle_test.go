package controlplane

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

func TestCompletionSaysEverything(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(nil)
		j := a.start()
		done := map[string]any{
			"outcome": "failed", "exitCode": 3, "signal": "SIGKILL", "error": "it broke", "result": map[string]any{"rows": 5},
			"logRecords": 2, "startedAt": "2026-01-02T03:04:05.5Z", "finishedAt": "2026-01-02T03:05:05+01:00",
		}
		r := a.on(j, "complete", done).want(t, 200, "")
		if string(r.body) != "{}" {
			t.Errorf("body %s; want {}", r.body)
		}
		v := e.job(job.ID)
		at := v.Attempts[0]
		if v.Status != store.JobFailed || v.Reason != "it broke" || at.ExitCode != 3 || at.Signal != "SIGKILL" || string(at.Result) != `{"rows":5}` ||
			at.LogRecords == nil || *at.LogRecords != 2 || at.LogsComplete || !at.StartedAt.Equal(time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC)) {
			t.Errorf("job: %+v", v)
		}
		// The log may lag; it is complete once it is there.
		a.ship(j, 0, 2, outLine("x")+outLine("y")).want(t, 200, "")
		if at := e.job(job.ID).Attempts[0]; !at.LogsComplete || at.LogNext != 2 {
			t.Errorf("attempt: %+v; want a complete log of 2", at)
		}
		// The same outcome again: always 200. Another one: lease_lost.
		a.on(j, "complete", done).want(t, 200, "")
		a.complete(j, protocol.Succeeded, 2).want(t, 409, protocol.CodeLeaseLost)
		a.on(j, "release", nil).want(t, 409, protocol.CodeLeaseLost)
		a.on(j, "heartbeat", nil).want(t, 409, protocol.CodeLeaseLost)
	})
}

func TestCompletionOfWhatTheReaperEnded(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		pass(time.Minute)
		job := e.submit(nil)
		j := a.start()
		pass(15 * time.Second)
		b := e.agent(nil)
		second := b.start()
		if second.ID != j.ID || second.Attempt != 2 {
			t.Fatalf("second attempt: %+v", second)
		}
		a.complete(j, protocol.Succeeded, 7).want(t, 409, protocol.CodeLeaseLost)
		a.complete(j, protocol.Lost, 7).want(t, 200, "")
		v := e.job(job.ID)
		if v.Status != store.Running || *v.Attempts[0].LogRecords != 7 || v.Attempts[0].State != store.AttemptLost {
			t.Errorf("job: %+v", v)
		}
	})
}

func TestCompletionOfAnOfferAndRelease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(map[string]any{"maxAttempts": 1})
		j := a.lease()
		// Released: back at once, a repeat is fine, and no attempt is used.
		answer := later(func() reply { return a.poll("wait=20&type=extract") })
		a.on(j, "release", map[string]any{"reason": "draining"}).want(t, 200, "")
		a.on(j, "release", map[string]any{"reason": "draining"}).want(t, 200, "")
		next := into[protocol.Job](t, (<-answer).want(t, 200, ""))
		if next.Attempt != 2 {
			t.Errorf("attempt %d; want 2", next.Attempt)
		}
		// An offer that could not start uses one.
		a.on(next, "complete", map[string]any{"outcome": "failed", "error": "no such command", "logRecords": 0}).want(t, 200, "")
		if v := e.job(job.ID); v.Status != store.JobFailed || v.Reason != "no such command" || v.Attempts[0].State != store.AttemptReleased {
			t.Errorf("job: %+v", v)
		}
	})
}

func TestCancelOfWhatDoesNotRun(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		pending := e.submit(nil)
		r := e.call("POST", "/api/v1/jobs/"+pending.ID+"/cancel", adminToken, nil).want(t, 202, "") // the body is optional
		if v := into[JobView](t, r); v.Status != store.JobCancelled {
			t.Errorf("pending: %+v; want cancelled", v)
		}
		offered := e.submit(nil)
		j := a.lease()
		if v := into[JobView](t, e.admin("POST", "jobs/"+offered.ID+"/cancel", nil).want(t, 202, "")); v.Status != store.JobCancelled {
			t.Errorf("offered: %+v; want cancelled", v)
		}
		a.on(j, "heartbeat", nil).want(t, 409, protocol.CodeLeaseLost)
		// Settled: no change.
		if v := into[JobView](t, e.admin("POST", "jobs/"+offered.ID+"/cancel", map[string]any{"reason": "late"}).want(t, 202, "")); v.CancelReason == "late" {
			t.Errorf("settled: %+v; want it unchanged", v)
		}
	})
}

func TestCompletionBodies(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		big := `"` + strings.Repeat("x", 256<<10) + `"`
		for _, tc := range []struct{ field, value, detail string }{
			{"outcome", `"won"`, "outcome"}, {"outcome", `null`, "outcome: is required"}, {"outcome", `5`, "outcome: is not a string"},
			{"logRecords", `null`, "logRecords: is required"}, {"logRecords", `-1`, "logRecords: is not within"}, {"logRecords", `1.5`, "logRecords: is not a whole number"},
			{"logRecords", `"1"`, "logRecords: is not a whole number"}, {"logRecords", `99999999999999999999`, "logRecords: is not within"},
			{"attempt", `-1`, "attempt: is not within"}, {"attempt", `null`, "attempt: is required"}, {"leaseToken", `7`, "leaseToken: is not a string"},
			{"exitCode", `4294967296`, "exitCode: is not within"}, {"startedAt", `"yesterday"`, "startedAt: is not an RFC 3339 time"},
			{"result", big, "result: is larger than 262144 bytes"}, {"signal", `["SIGKILL"]`, "signal: is not a string"},
		} {
			body := map[string]json.RawMessage{
				"attempt": json.RawMessage("1"), "leaseToken": json.RawMessage(`"` + j.LeaseToken + `"`), "outcome": json.RawMessage(`"failed"`), "logRecords": json.RawMessage("0"),
			}
			body[tc.field] = json.RawMessage(tc.value)
			r := e.call("POST", "/agent/v1/jobs/"+j.ID+"/complete", a.key, body).want(t, 400, protocol.CodeInvalid)
			if d := r.problem().Detail; !strings.Contains(d, tc.detail) {
				t.Errorf("%s = %.40s: detail %q; want %q", tc.field, tc.value, d, tc.detail)
			}
		}
		token := `"leaseToken":"` + j.LeaseToken + `"`
		for body, detail := range map[string]string{
			``:    "ends within",
			`{`:   "ends within",
			`[]`:  "not a JSON object",
			`"x"`: "not a JSON object",
			`{"attempt":1,` + token + `,"outcome":"failed","logRecords":0} x`:                    "something follows",
			`{"Attempt":1,` + token + `,"outcome":"failed","logRecords":0}`:                      "attempt: is required",
			`{"attempt":1,"attempt":1,` + token + `,"outcome":"failed","logRecords":0}`:          "attempt: is there twice",
			`{"attempt":1,` + token + `,"outcome":"failed","logRecords":0,"error":"` + "\xff\"}": "UTF-8",
		} {
			r := e.call("POST", "/agent/v1/jobs/"+j.ID+"/complete", a.key, body).want(t, 400, protocol.CodeInvalid)
			if d := r.problem().Detail; !strings.Contains(d, detail) {
				t.Errorf("%s: detail %q; want %q", body, d, detail)
			}
		}
		path := "/agent/v1/jobs/" + j.ID + "/complete"
		e.call("POST", path, a.key, strings.Repeat(" ", 1<<20)+"{}").want(t, 413, protocol.CodeTooLarge)
		e.call("POST", path, a.key, "{}", "Content-Type: text/plain").want(t, 415, protocol.CodeInvalid)
		e.call("POST", path, a.key, "{}", "Content-Encoding: gzip").want(t, 415, protocol.CodeInvalid)
		// Unknown fields are ignored, a charset is fine, and null is absent where absent is allowed.
		ok := `{"attempt":1,` + token + `,"outcome":"failed","logRecords":0,"result":null,"error":null,"newer":{"a":[1,{}]}}`
		e.call("POST", path, a.key, ok, "Content-Type: application/json; charset=utf-8").want(t, 200, "")
	})
}
