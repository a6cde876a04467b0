package protocol

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	defaultTimeout = 30 * time.Second
	// holdGrace is what a held call may take beyond its wait, so that the server's own answer
	// always wins the race against our deadline.
	holdGrace = 15 * time.Second
	// The heartbeat's deadline beyond its wait: a third of the TTL, within these bounds. With
	// the wait (another third) a heartbeat that hangs leaves time for one more within the TTL.
	minHeartbeatGrace = time.Second
	maxHeartbeatGrace = 10 * time.Second
	newHeartbeatGrace = 3 * time.Second // while no TTL is known
	// slowestUpload is the slowest link on which a log body must still get through: half a Mbit/s.
	slowestUpload = 64 << 10 // bytes a second
)

// PollRequest asks for one job.
type PollRequest struct {
	PollID string        // unique per poll; the same again after a lost answer gets the same offer
	Wait   time.Duration // whole seconds, rounded up; the server holds the poll up to it
	Types  []string      // at least one
}

// LogBody is a stretch of an attempt's log, sealed frames one after the other.
type LogBody struct {
	First    int64    // the first record's number
	Count    int64    // how many numbers it covers, gaps included
	Final    bool     // the log ends here
	Encoding string   // zstd, gzip, snappy or identity ("" = identity)
	Frames   [][]byte // must not change until the call returns
}

// Challenge asks for a nonce to sign.
func (c *Client) Challenge(ctx context.Context, r ChallengeRequest) (Challenge, error) {
	var answer Challenge
	_, err := c.do(ctx, &call{
		op: "challenge", pool: poolRest, method: http.MethodPost, path: "/agent/v1/link/challenge",
		timeout: c.cfg.Timeout, in: &r, out: &answer, want: []int{200},
	})
	return answer, err
}

// Link proves the agent's identity and gets an API key: token for a first link, "" for a
// re-link. first tells whether the server took it as a first link (201). It is never repeated
// by the client itself: a nonce is good for one use.
func (c *Client) Link(ctx context.Context, token string, r LinkRequest) (link Link, first bool, err error) {
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	if r.Types == nil {
		r.Types = []string{}
	}
	if r.Connectors == nil {
		r.Connectors = []string{}
	}
	status, err := c.do(ctx, &call{
		op: "link", pool: poolRest, method: http.MethodPost, path: "/agent/v1/link",
		timeout: c.cfg.Timeout, in: &r, out: &link, want: []int{200, 201}, bearer: token, once: true,
	})
	if err == nil {
		c.leaseTTL.Store(int64(link.LeaseTTL.Duration()))
	}
	return link, status == http.StatusCreated, err
}

// NextJob polls for a job. nil, nil = there was none within the wait.
func (c *Client) NextJob(ctx context.Context, r PollRequest) (*Job, error) {
	q := url.Values{"wait": {strconv.FormatInt(int64((r.Wait+time.Second-1)/time.Second), 10)}, "type": r.Types}
	var answer Job
	status, err := c.do(ctx, &call{
		op: "poll", pool: poolPolls, method: http.MethodGet, path: "/agent/v1/jobs/next", query: q,
		header:  http.Header{"Agentd-Poll-Id": {r.PollID}, "Agentd-Process-Id": {c.cfg.ProcessID}},
		timeout: r.Wait + holdGrace, out: &answer, want: []int{200, 204}, auth: true, valid: &r,
	})
	if err != nil || status == http.StatusNoContent {
		return nil, err
	}
	c.leaseTTL.Store(int64(answer.LeaseTTL.Duration()))
	return &answer, nil
}

// Heartbeat accepts an offer (wait 0) or keeps a lease. The server holds its answer up to wait.
func (c *Client) Heartbeat(ctx context.Context, jobID string, wait time.Duration, r HeartbeatRequest) (Heartbeat, error) {
	grace := newHeartbeatGrace
	if ttl := time.Duration(c.leaseTTL.Load()); ttl > 0 {
		grace = min(max(ttl/3, minHeartbeatGrace), maxHeartbeatGrace)
	}
	var answer Heartbeat
	_, err := c.do(ctx, &call{
		op: "heartbeat", pool: poolHeartbeats, method: http.MethodPost, job: jobID, path: "/heartbeat",
		query:   url.Values{"waitMs": {strconv.FormatInt(int64(ToMillis(wait)), 10)}},
		timeout: wait + grace, in: &r, out: &answer, want: []int{200}, auth: true,
	})
	if err == nil {
		c.leaseTTL.Store(int64(answer.LeaseTTL.Duration()))
	}
	return answer, err
}

// Complete reports how an attempt ended. Repeating it is harmless.
func (c *Client) Complete(ctx context.Context, jobID string, r Completion) error {
	_, err := c.do(ctx, &call{
		op: "complete", pool: poolRest, method: http.MethodPost, job: jobID, path: "/complete",
		timeout: c.cfg.Timeout, in: &r, out: &struct{}{}, want: []int{200}, auth: true,
	})
	return err
}

// Release gives an attempt back that has not started. Repeating it is harmless.
func (c *Client) Release(ctx context.Context, jobID string, r Release) error {
	_, err := c.do(ctx, &call{
		op: "release", pool: poolRest, method: http.MethodPost, job: jobID, path: "/release",
		timeout: c.cfg.Timeout, in: &r, out: &struct{}{}, want: []int{200}, auth: true,
	})
	return err
}

// ShipLog sends records. Everything below the answer's Next is durably stored, and nothing
// else is: after an error the body may or may not have been, and sending it again is harmless.
func (c *Client) ShipLog(ctx context.Context, ref AttemptRef, body LogBody) (Next, error) {
	if err := errors.Join(ref.Validate(), body.Validate()); err != nil {
		return Next{}, refused("ship log", err)
	}
	q := url.Values{"first": {strconv.FormatInt(body.First, 10)}, "count": {strconv.FormatInt(body.Count, 10)}}
	if body.Final {
		q.Set("final", "1")
	}
	size := int64(0)
	digest := sha256.New()
	for _, f := range body.Frames {
		size += int64(len(f))
		digest.Write(f)
	}
	encoding := body.Encoding
	if encoding == "" || size == 0 {
		encoding = "identity" // nothing is no frame of any other
	}
	var answer Next
	_, err := c.do(ctx, &call{
		op: "ship log", pool: poolLogs, method: http.MethodPost, job: ref.JobID,
		path: "/attempts/" + strconv.FormatInt(ref.Attempt, 10) + "/logs", query: q,
		header: http.Header{
			"Agentd-Lease-Token": {ref.LeaseToken},
			"Content-Type":       {"application/x-ndjson"},
			"Content-Encoding":   {encoding},
			"Content-Digest":     {"sha-256=:" + base64.StdEncoding.EncodeToString(digest.Sum(nil)) + ":"},
		},
		timeout: c.cfg.Timeout + time.Duration(size)*time.Second/slowestUpload,
		body:    func() io.Reader { return newFrames(body.Frames) }, size: size,
		out: &answer, want: []int{200}, auth: true,
	})
	return answer, err
}

// LogNext asks how far the server has an attempt's log.
func (c *Client) LogNext(ctx context.Context, ref AttemptRef) (Next, error) {
	if err := ref.Validate(); err != nil {
		return Next{}, refused("log next", err)
	}
	var answer Next
	_, err := c.do(ctx, &call{
		op: "log next", pool: poolLogs, method: http.MethodGet, job: ref.JobID,
		path:    "/attempts/" + strconv.FormatInt(ref.Attempt, 10) + "/logs/next",
		header:  http.Header{"Agentd-Lease-Token": {ref.LeaseToken}},
		timeout: c.cfg.Timeout, out: &answer, want: []int{200}, auth: true,
	})
	return answer, err
}

// Activate polls for queries; none at the end of the wait.
func (c *Client) Activate(ctx context.Context, r Activation) ([]Query, error) {
	var answer Activated
	_, err := c.do(ctx, &call{
		op: "activate", pool: poolQueries, method: http.MethodPost, path: "/agent/v1/queries/activate",
		header:  http.Header{"Agentd-Process-Id": {c.cfg.ProcessID}},
		timeout: r.Wait.Duration() + holdGrace, in: &r, out: &answer, want: []int{200}, auth: true,
	})
	return answer.Queries, err
}

// Answer answers a query. Give it a context that ends with the query.
func (c *Client) Answer(ctx context.Context, queryID string, r Answer) error {
	if err := checkID("query id", queryID); err != nil {
		return refused("answer", err)
	}
	if r.Page != nil && r.Page.Items == nil {
		r.Page = &Page{Items: []json.RawMessage{}, Next: r.Page.Next} // nothing found is [], not null
	}
	_, err := c.do(ctx, &call{
		op: "answer", pool: poolQueries, method: http.MethodPost, path: "/agent/v1/queries/" + queryID + "/answer",
		timeout: c.cfg.Timeout, in: &r, want: []int{204}, auth: true,
	})
	return err
}
