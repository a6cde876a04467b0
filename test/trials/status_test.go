package trials

import (
	"testing"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
)

// Each job meets a status of its own, two or three times, all at once. Those whose repetition takes minutes by the table
// (403 revoked, 501, 505) are package shipper's, where minutes cost nothing.
func TestL5EveryStatus(t *testing.T) {
	t.Parallel()
	w := begin(t, "max_jobs: 20\nlogs: {memory: 16MiB}\n")
	answers := []faults.Rule{
		{Status: 400, Code: protocol.CodeInvalid}, {Status: 400, Code: protocol.CodeCorrupt}, {Status: 400},
		{Status: 401, Code: protocol.CodeUnauthenticated}, {Status: 403}, {Status: 404}, {Status: 408}, {Status: 409},
		{Status: 409, Code: protocol.CodeLeaseLost}, {Status: 413, Code: protocol.CodeTooLarge}, {Status: 422, Code: protocol.CodeInvalid},
		{Status: 425}, {Status: 429, Code: protocol.CodeThrottled, RetryAfter: "1"}, {Status: 500, Code: protocol.CodeInternal},
		{Status: 502}, {Status: 503, Code: protocol.CodeUnavailable}, {Status: 504},
	}
	ids, does := make([]string, len(answers)), make([]work, len(answers))
	for i := range answers {
		does[i] = work{Lines: 1000, Size: 120, Burst: 1000, Both: true, Hold: true}
		ids[i] = w.print(t, adminclient.Submission{MaxAttempts: 1}, &does[i])
		answers[i].Method, answers[i].Path = "POST", "/agent/v1/jobs/"+ids[i]+"/attempts/*/logs"
		answers[i].Mode, answers[i].Count = faults.Status, 3
		if answers[i].Code == protocol.CodeCorrupt {
			answers[i].Count = 2 // at the third the batch would be a dead letter
		}
	}
	w.faults(t, answers...)
	for _, d := range does {
		d.letGo(t)
	}
	for i, id := range ids {
		w.whole(t, w.ended(t, id, "succeeded"), does[i])
	}
	for i, n := range w.hits(t) {
		if n == 0 {
			t.Errorf("%d %s struck nothing", answers[i].Status, answers[i].Code)
		}
	}
	if st := w.status(t); st.Logs.Dead != 0 {
		t.Errorf("%d records were dead-lettered after so few refusals", st.Logs.Dead)
	}
}
