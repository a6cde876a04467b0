package adminclient

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"agentd/controlplane-mock/faults"
)

// Submit hands a job in. created is false when the idempotency key had been used for the same job before.
func (c *Client) Submit(ctx context.Context, s Submission) (job Job, created bool, err error) {
	job, status, err := call[Job](ctx, c, "submit a job", http.MethodPost, "/api/v1/jobs", nil, s)
	return job, status == http.StatusCreated, err
}

// Job tells a job.
func (c *Client) Job(ctx context.Context, id string) (Job, error) {
	job, _, err := call[Job](ctx, c, "look at job "+id, http.MethodGet, "/api/v1/jobs/"+url.PathEscape(id), nil, nil)
	return job, err
}

// Jobs lists a page of jobs.
func (c *Client) Jobs(ctx context.Context, f JobFilter) (Page[Job], error) {
	q := url.Values{}
	for k, v := range map[string]string{"status": f.Status, "agentId": f.AgentID, "type": f.Type, "after": f.After} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	page, _, err := call[Page[Job]](ctx, c, "list jobs", http.MethodGet, "/api/v1/jobs", q, nil)
	return page, err
}

// Cancel ends a job that waits, or asks for a running one's end. A settled one stays as it is.
func (c *Client) Cancel(ctx context.Context, id, reason string) (Job, error) {
	body := struct {
		Reason string `json:"reason,omitempty"`
	}{reason}
	job, _, err := call[Job](ctx, c, "cancel job "+id, http.MethodPost, "/api/v1/jobs/"+url.PathEscape(id)+"/cancel", nil, body)
	return job, err
}

// Retry gives a settled job that didn't succeed one more attempt.
func (c *Client) Retry(ctx context.Context, id string) (Job, error) {
	job, _, err := call[Job](ctx, c, "retry job "+id, http.MethodPost, "/api/v1/jobs/"+url.PathEscape(id)+"/retry", nil, nil)
	return job, err
}

// Agents lists a page of agents.
func (c *Client) Agents(ctx context.Context, after string, limit int) (Page[Agent], error) {
	q := url.Values{}
	if after != "" {
		q.Set("after", after)
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	page, _, err := call[Page[Agent]](ctx, c, "list agents", http.MethodGet, "/api/v1/agents", q, nil)
	return page, err
}

// Agent tells an agent.
func (c *Client) Agent(ctx context.Context, id string) (Agent, error) {
	a, _, err := call[Agent](ctx, c, "look at agent "+id, http.MethodGet, "/api/v1/agents/"+url.PathEscape(id), nil, nil)
	return a, err
}

// Revoke shuts an agent out, Restore lets it in again, ExpireKey makes it prove itself anew.
func (c *Client) Revoke(ctx context.Context, id string) (Agent, error) {
	return c.agentVerb(ctx, id, "revoke")
}

// Restore undoes Revoke.
func (c *Client) Restore(ctx context.Context, id string) (Agent, error) {
	return c.agentVerb(ctx, id, "restore")
}

// ExpireKey ends the agent's API keys; it links again by proof.
func (c *Client) ExpireKey(ctx context.Context, id string) (Agent, error) {
	return c.agentVerb(ctx, id, "expire-key")
}

func (c *Client) agentVerb(ctx context.Context, id, verb string) (Agent, error) {
	a, _, err := call[Agent](ctx, c, verb+" agent "+id, http.MethodPost, "/api/v1/agents/"+url.PathEscape(id)+"/"+verb, nil, nil)
	return a, err
}

// Token mints an enrolment token. It is shown this once.
func (c *Client) Token(ctx context.Context, r TokenRequest) (string, error) {
	out, _, err := call[struct {
		Token string `json:"token"`
	}](ctx, c, "mint an enrolment token", http.MethodPost, "/api/v1/enrolment-tokens", nil, r)
	return out.Token, err
}

// Ask puts a query to an agent's connector and waits for the page.
func (c *Client) Ask(ctx context.Context, q Query) (json.RawMessage, error) {
	const op = "ask"
	limit := 60 * time.Second // the server's own cap on a query
	if q.Timeout > 0 {
		limit = q.Timeout.Duration()
	}
	ctx, cancel := context.WithTimeout(ctx, limit+askMargin)
	defer cancel()
	resp, err := c.send(ctx, op, http.MethodPost, "/api/v1/queries", nil, q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() // the whole answer has been read, or it failed
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, &Error{Op: op, Status: resp.StatusCode, Err: err}
	}
	if !json.Valid(raw) {
		return nil, &Error{Op: op, Status: resp.StatusCode, Err: errors.New("the answer isn't JSON")}
	}
	return raw, nil
}

// Ready answers nil when the server can serve.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.send(ctx, "ask whether it is ready", http.MethodGet, "/readyz", nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

type ruleList struct {
	Rules []faults.Rule `json:"rules"`
}

// SetFaults replaces the fault rules.
func (c *Client) SetFaults(ctx context.Context, rules []faults.Rule) error {
	if rules == nil {
		rules = []faults.Rule{}
	}
	_, _, err := c.Do(ctx, "set faults", http.MethodPut, "/mock/v1/faults", nil, ruleList{rules})
	return err
}

// Faults tells the rules in force and how often each has struck.
func (c *Client) Faults(ctx context.Context) ([]faults.RuleState, error) {
	out, _, err := call[struct {
		Rules []faults.RuleState `json:"rules"`
	}](ctx, c, "look at faults", http.MethodGet, "/mock/v1/faults", nil, nil)
	return out.Rules, err
}

// ClearFaults removes all rules.
func (c *Client) ClearFaults(ctx context.Context) error {
	_, _, err := c.Do(ctx, "clear faults", http.MethodDelete, "/mock/v1/faults", nil, nil)
	return err
}

// Outage takes the agent port down for a while.
func (c *Client) Outage(ctx context.Context, o faults.OutageSpec) error {
	_, _, err := c.Do(ctx, "begin an outage", http.MethodPut, "/mock/v1/outage", nil, o)
	return err
}

// EndOutage brings the agent port back at once.
func (c *Client) EndOutage(ctx context.Context) error {
	_, _, err := c.Do(ctx, "end the outage", http.MethodDelete, "/mock/v1/outage", nil, nil)
	return err
}
