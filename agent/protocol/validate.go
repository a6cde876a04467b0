package protocol

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// The protocol's limits. A server may be set to others; these are what an agent counts on.
const (
	MaxID             = 64
	MaxProcessID      = 128
	MaxName           = 128 // a type, a label, a connector
	MaxJSONBody       = 1 << 20
	MaxPayload        = 256 << 10
	MaxResult         = 256 << 10
	MaxLogBody        = 8 << 20  // as sent
	MaxLogDecoded     = 32 << 20 // unpacked
	MaxRecord         = 1 << 20
	MaxIdempotencyKey = 256
	// maxMillis is a hundred years: no real duration is longer, and none as long overflows a time.Duration.
	maxMillis Millis = 100 * 365 * 24 * 3600 * 1000
)

func fault(field, format string, args ...any) error {
	return &FieldError{Field: field, Why: fmt.Sprintf(format, args...)}
}

// ValidID tells whether s can be an id: 1 to 64 characters from A-Z a-z 0-9 _ -.
func ValidID(s string) bool { return len(s) >= 1 && len(s) <= MaxID && plain(s, false) }

func plain(s string, dots bool) bool {
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', dots && c == '.':
		default:
			return false
		}
	}
	return true
}

func checkID(field, s string) error {
	if !ValidID(s) {
		return fault(field, "is not 1 to %d characters from A-Z a-z 0-9 _ -", MaxID)
	}
	return nil
}

// ValidProcessID tells whether s can be a process id: as an id, longer and with dots.
func ValidProcessID(s string) bool { return s != "" && len(s) <= MaxProcessID && plain(s, true) }

// checkName: types, labels and connectors are text of 1 to 128 characters.
func checkName(field, s string) error {
	if n := utf8.RuneCountInString(s); n < 1 || n > MaxName {
		return fault(field, "is not 1 to %d characters", MaxName)
	}
	return nil
}

func checkMillis(field string, m, atLeast Millis) error {
	if m < atLeast || m > maxMillis {
		return fault(field, "is %d, not between %d and %d", m, atLeast, maxMillis)
	}
	return nil
}

// first is the first fault of several checks.
func first(faults ...error) error {
	for _, err := range faults {
		if err != nil {
			return err
		}
	}
	return nil
}

// Validate names the first field that is missing or out of range.
func (r *ChallengeRequest) Validate() error {
	if len(r.PublicKey) != 32 {
		return fault("publicKey", "is %d bytes, not an Ed25519 key's 32", len(r.PublicKey))
	}
	if r.AgentID != "" {
		return checkID("agentId", r.AgentID)
	}
	return nil
}

// Validate names the first field that is missing or out of range.
func (c *Challenge) Validate() error {
	if c.Nonce == "" {
		return fault("nonce", "is empty")
	}
	return first(checkID("serverId", c.ServerID), checkMillis("expiresInMs", c.ExpiresIn, 0))
}

// Validate names the first field that is missing or out of range.
func (r *LinkRequest) Validate() error {
	if err := (&ChallengeRequest{PublicKey: r.PublicKey, AgentID: r.AgentID}).Validate(); err != nil {
		return err
	}
	switch {
	case !ValidProcessID(r.ProcessID):
		return fault("processId", "is not 1 to %d characters from A-Z a-z 0-9 _ - .", MaxProcessID)
	case r.Nonce == "":
		return fault("nonce", "is empty")
	case len(r.Signature) != 64:
		return fault("signature", "is %d bytes, not an Ed25519 signature's 64", len(r.Signature))
	case utf8.RuneCountInString(r.Name) > MaxName:
		return fault("name", "is longer than %d characters", MaxName)
	}
	for k, v := range r.Labels {
		if err := checkName("labels", k); err != nil {
			return err
		}
		if utf8.RuneCountInString(v) > MaxName {
			return fault("labels."+k, "is longer than %d characters", MaxName)
		}
	}
	return first(checkNames("types", r.Types), checkNames("connectors", r.Connectors))
}

func checkNames(field string, names []string) error {
	for i, n := range names {
		if err := checkName(fmt.Sprintf("%s[%d]", field, i), n); err != nil {
			return err
		}
	}
	return nil
}

// Validate names the first field that is missing or out of range.
func (l *Link) Validate() error {
	if l.APIKey == "" {
		return fault("apiKey", "is empty")
	}
	if l.MaxLogBody < 0 {
		return fault("maxLogBody", "is negative")
	}
	return first(checkID("agentId", l.AgentID), checkID("serverId", l.ServerID),
		checkMillis("apiKeyExpiresInMs", l.KeyExpiresIn, 1), checkMillis("leaseTtlMs", l.LeaseTTL, 1),
		checkMillis("heartbeatMs", l.Heartbeat, 1), checkMillis("pollWaitMs", l.PollWait, 0))
}

// Validate names the first field that is missing or out of range.
func (r *PollRequest) Validate() error {
	if len(r.Types) == 0 {
		return fault("type", "is required, at least once")
	}
	if r.Wait < 0 {
		return fault("wait", "is negative")
	}
	return first(checkID("Agentd-Poll-Id", r.PollID), checkNames("type", r.Types))
}

// Validate names the first field that is missing or out of range.
func (j *Job) Validate() error {
	return first(checkID("id", j.ID), checkName("type", j.Type), checkAttempt(j.Attempt, j.LeaseToken),
		checkMillis("leaseTtlMs", j.LeaseTTL, 1), checkMillis("timeoutMs", j.Timeout, 0), checkMillis("graceMs", j.Grace, 0))
}

func checkAttempt(attempt int64, token string) error {
	if attempt < 1 {
		return fault("attempt", "is %d, not a number from 1", attempt)
	}
	if token == "" {
		return fault("leaseToken", "is empty")
	}
	return nil
}

// Validate names the first field that is missing or out of range.
func (r AttemptRef) Validate() error {
	return first(checkID("job id", r.JobID), checkAttempt(r.Attempt, r.LeaseToken))
}

// Validate names the first field that is missing or out of range.
func (r *HeartbeatRequest) Validate() error {
	if r.SpooledBytes < 0 {
		return fault("spooledBytes", "is negative")
	}
	return first(checkAttempt(r.Attempt, r.LeaseToken), checkMillis("oldestUnshippedMs", r.OldestUnshipped, 0))
}

// Validate names the first field that is missing or out of range.
func (h *Heartbeat) Validate() error {
	if h.Cancel != nil {
		if err := checkMillis("cancel.graceMs", h.Cancel.Grace, 0); err != nil {
			return err
		}
	}
	return first(checkMillis("leaseTtlMs", h.LeaseTTL, 1), checkMillis("heartbeatMs", h.Heartbeat, 1))
}

// Validate names the first field that is missing or out of range.
func (c *Completion) Validate() error {
	switch c.Outcome {
	case Succeeded, Failed, Cancelled, TimedOut, Lost:
	default:
		return fault("outcome", "is %q, not succeeded, failed, cancelled, timedOut or lost", c.Outcome)
	}
	switch {
	case c.LogRecords < 0:
		return fault("logRecords", "is negative")
	case len(c.Result) > MaxResult:
		return fault("result", "is %d bytes, more than %d", len(c.Result), MaxResult)
	case len(c.Result) > 0 && !json.Valid(c.Result):
		return fault("result", "is not JSON")
	}
	return checkAttempt(c.Attempt, c.LeaseToken)
}

// Validate names the first field that is missing or out of range.
func (r *Release) Validate() error { return checkAttempt(r.Attempt, r.LeaseToken) }

// Validate names the first field that is missing or out of range.
func (b *LogBody) Validate() error {
	size := 0
	for _, f := range b.Frames {
		size += len(f)
	}
	switch {
	case b.First < 0:
		return fault("first", "is negative")
	case b.Count < 0:
		return fault("count", "is negative")
	case b.Count == 0 && size > 0:
		return fault("count", "is 0, but there is a body")
	case b.Count > 0 && size == 0:
		return fault("count", "is %d, but the body is empty", b.Count)
	}
	return nil
}

// Validate names the first field that is missing or out of range.
func (n *Next) Validate() error {
	if n.Next < 0 {
		return fault("next", "is negative")
	}
	return nil
}

// Validate names the first field that is missing or out of range.
func (a *Activation) Validate() error {
	switch {
	case len(a.Connectors) == 0:
		return fault("connectors", "is empty")
	case a.MaxQueries < 1:
		return fault("maxQueries", "is %d, not a number from 1", a.MaxQueries)
	}
	return first(checkName("type", a.Type), checkNames("connectors", a.Connectors), checkMillis("waitMs", a.Wait, 0))
}

// Validate names the first field that is missing or out of range.
func (a *Activated) Validate() error {
	for i := range a.Queries {
		q := &a.Queries[i]
		at := fmt.Sprintf("queries[%d].", i)
		if q.LeaseToken == "" {
			return fault(at+"leaseToken", "is empty")
		}
		if err := first(checkID(at+"id", q.ID), checkName(at+"type", q.Type), checkName(at+"connector", q.Connector)); err != nil {
			return err
		}
		if q.Remaining > maxMillis {
			return fault(at+"remainingMs", "is %d, more than %d", q.Remaining, maxMillis)
		}
	}
	return nil
}

// Validate names the first field that is missing or out of range.
func (a *Answer) Validate() error {
	switch {
	case a.LeaseToken == "":
		return fault("leaseToken", "is empty")
	case (a.Page == nil) == (a.Error == nil):
		return fault("page", "is required unless there is an error, and not allowed with one")
	case a.Error != nil && a.Error.Code == "":
		return fault("error.code", "is empty")
	case a.Error != nil && a.Error.RetryAfter < 0:
		return fault("error.retryAfter", "is negative")
	}
	return nil
}
