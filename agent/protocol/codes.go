package protocol

// Code is the machine-readable member of every problem+json answer. The set is closed.
type Code string

// The codes of protocol.md §1, with the statuses they travel with.
const (
	CodeInvalid          Code = "invalid"           // 400, 405, 415, 422
	CodeCorrupt          Code = "corrupt"           // 400
	CodeUnauthenticated  Code = "unauthenticated"   // 401
	CodeRevoked          Code = "revoked"           // 403
	CodeIdentityConflict Code = "identity_conflict" // 409
	CodeNotFound         Code = "not_found"         // 404
	CodeLeaseLost        Code = "lease_lost"        // 409
	CodeLogGap           Code = "log_gap"           // 409, with next
	CodeTooLarge         Code = "too_large"         // 413
	CodeThrottled        Code = "throttled"         // 429
	CodeUnavailable      Code = "unavailable"       // 503
	CodeInternal         Code = "internal"          // 500
	CodeGone             Code = "gone"              // 410, queries
	CodeFenced           Code = "fenced"            // 409, queries
	CodeBusy             Code = "busy"              // 429, admin side
	CodeTimeout          Code = "timeout"           // 504, admin side
	CodeConflict         Code = "conflict"          // 409, admin side
)

// Problem is the body of every error answer (RFC 9457).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   Code   `json:"code"`
	Next   *int64 `json:"next,omitempty"` // with log_gap only
}
