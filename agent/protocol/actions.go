package protocol

import (
	"errors"
	"net/http"
	"slices"
)

// Action is what an agent does about a failed call.
type Action uint8

// The actions. What they mean for a call that the text doesn't name: nothing beyond the text.
const (
	Proceed      Action = iota // there was no error
	Retry                      // the same call again, with back-off, honouring Retry-After
	RetrySlow                  // as Retry, slowly and with an alarm: no retry is likely to help
	Throttle                   // pause the whole route (all logs, all polls) for Retry-After; heartbeats at most a third of the TTL
	Relink                     // re-link by proof and repeat, keeping all data; on link itself: every 5 min, or when the token changes
	StopRevoked                // stop asking for work, keep all data, ask again every 5 min
	StopConflict               // stop asking for work, keep all data, say what to do; never link with start again
	Bisect                     // never the same request again. Logs: bisect, then dead-letter the one record
	Reencode                   // as Bisect, but another content encoding first
	Rebuild                    // build the body again and resend; the third time, dead-letter it
	Halve                      // halve the batch, remember the limit; a single record is dead-lettered
	Rewind                     // go on at Error.Next, or ship a gap over what no longer exists
	Orphan                     // logs: keep them as orphans for the operator; a completion is dropped with a warning
	LeaseOver                  // kill the job, send no completion; its logs still ship
	Drop                       // a query's answer that nobody waits for any more
)

// rule is one row of the code → action table.
type rule struct {
	code     Code
	statuses []int // the statuses that the code travels with; with any other the answer isn't the control plane's
	action   Action
}

// rules is the one table of what the server can say and what the agent does about it
// (docs/protocol.md, "Errors"; a test compares the two). A code with a status that isn't its
// own is no code: the dangerous actions (kill the job, drop the answer, dead-letter the
// record) are taken on the control plane's word only.
var rules = []rule{
	// The request itself is wrong, so the same bytes fail for ever. Never a reason to drop more
	// than the one record that the server can't take.
	{CodeInvalid, []int{400, 405, 422}, Bisect},
	// 415 is about the encoding, not the records: no record is dead-lettered for it.
	{CodeInvalid, []int{415}, Reencode},
	// Damage on the way. Not Bisect: the records are innocent, and a new body usually passes.
	{CodeCorrupt, []int{400}, Rebuild},
	// The key ran out or was refused; the identity stands. Never drops data.
	{CodeUnauthenticated, []int{401}, Relink},
	// A person's decision that a person may undo. Running jobs go on until their lease runs out.
	{CodeRevoked, []int{403}, StopRevoked},
	// Linking with start again would start a tug of war between the two machines.
	{CodeIdentityConflict, []int{409}, StopConflict},
	// Only with the code: a proxy's 404 must orphan nothing.
	{CodeNotFound, []int{404}, Orphan},
	// Ends the job, not its log: logs belong to the attempt and still ship.
	{CodeLeaseLost, []int{409}, LeaseOver},
	// Carries next; without it the answer is no log_gap.
	{CodeLogGap, []int{409}, Rewind},
	// Also inferred, below: proxies mean it.
	{CodeTooLarge, []int{413}, Halve},
	// Also inferred, below. Concerns the route, not the request.
	{CodeThrottled, []int{429}, Throttle},
	{CodeUnavailable, []int{503}, Retry},
	{CodeInternal, []int{500}, Retry},
	// Queries: the asker has gone, or another worker has it. Nothing to keep: queries live nowhere.
	{CodeGone, []int{410}, Drop},
	{CodeFenced, []int{409}, Drop},
	// Admin side only. An agent that meets them all the same waits and comes back; it drops nothing.
	{CodeBusy, []int{429}, Throttle},
	{CodeTimeout, []int{504}, Retry},
	{CodeConflict, []int{409}, Retry},
}

// inferred are the statuses that mean something without a code, since proxies say them and
// mean it. Every other status without a known code: Retry, for whoever answered isn't the
// control plane, and a retry is the one thing that can't do harm.
var inferred = map[int]Action{
	http.StatusRequestEntityTooLarge: Halve,
	http.StatusTooManyRequests:       Throttle,
	// Retried as every other, but listed since the protocol names them.
	http.StatusRequestTimeout: Retry,
	http.StatusTooEarly:       Retry,
	// Reported as the proxy wanting a password (Error.Detail); retried, since the fix may come while we wait.
	http.StatusProxyAuthRequired: Retry,
	// Whoever answers can't do what we ask, and won't in 30 s.
	http.StatusNotImplemented:          RetrySlow,
	http.StatusHTTPVersionNotSupported: RetrySlow,
}

// ActionFor is what the agent does about err: the table of protocol.md §1.
func ActionFor(err error) Action {
	if err == nil {
		return Proceed
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return Retry
	}
	if e.Status == 0 {
		if _, ours := errors.AsType[*FieldError](e.Err); ours {
			return Bisect // our own request is malformed: it was never sent, and never will pass
		}
		return Retry
	}
	if r, known := ruleFor(e.Status, e.Code); known {
		return r.action
	}
	if a, known := inferred[e.Status]; known {
		return a
	}
	return Retry
}

func ruleFor(status int, code Code) (rule, bool) {
	for _, r := range rules {
		if r.code == code && slices.Contains(r.statuses, status) {
			return r, true
		}
	}
	return rule{}, false
}

func (a Action) String() string {
	names := [...]string{
		Proceed: "proceed", Retry: "retry", RetrySlow: "retry slowly", Throttle: "throttle", Relink: "re-link",
		StopRevoked: "stop (revoked)", StopConflict: "stop (identity conflict)", Bisect: "bisect", Reencode: "re-encode",
		Rebuild: "rebuild", Halve: "halve", Rewind: "rewind", Orphan: "orphan", LeaseOver: "lease over", Drop: "drop",
	}
	if int(a) < len(names) {
		return names[a]
	}
	return "unknown"
}
