package protocol

import "encoding/json"

// Activation asks for queries to answer (POST /agent/v1/queries/activate). Every activation,
// also one that breaks off, keeps the agent present for its connectors.
type Activation struct {
	Type       string   `json:"type"       wire:"required"`
	Worker     string   `json:"worker"` // the agent's name
	Connectors []string `json:"connectors" wire:"required"`
	MaxQueries int      `json:"maxQueries" wire:"required"`
	Wait       Millis   `json:"waitMs"`
}

// Activated is the answer to an activation; no queries at the end of the wait.
type Activated struct {
	Queries []Query `json:"queries" wire:"required"`
}

// Query is a question that a person waits for. It is written nowhere: not to a log, not to a
// metric, not to a disk.
type Query struct {
	ID         string          `json:"id"          wire:"required"`
	LeaseToken string          `json:"leaseToken"  wire:"required"`
	Type       string          `json:"type"        wire:"required"`
	Connector  string          `json:"connector"   wire:"required"`
	Deadline   int64           `json:"deadline"` // unix ms, for people to read; decide on Remaining
	Remaining  Millis          `json:"remainingMs" wire:"required"`
	Query      json.RawMessage `json:"query"       wire:"required"`
}

// Answer answers a query with a page or with an error, never both (POST /agent/v1/queries/{id}/answer).
type Answer struct {
	Worker     string      `json:"worker"`
	LeaseToken string      `json:"leaseToken"      wire:"required"`
	Page       *Page       `json:"page,omitempty"`
	Error      *QueryError `json:"error,omitempty"`
}

// Page is a query's result.
type Page struct {
	Items []json.RawMessage `json:"items" wire:"required"`
	Next  string            `json:"next"`
}

// QueryError is the worker's own word on why there is no page.
type QueryError struct {
	Code       string `json:"code"                 wire:"required"`
	RetryAfter int64  `json:"retryAfter,omitempty"` // whole seconds
}
