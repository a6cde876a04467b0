package controlplane

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"agentd/controlplane-mock/query"
	"agentd/controlplane-mock/store"
)

// Config is everything a Server needs. The zero value of each field but Store means the default named beside it.
type Config struct {
	Store store.Store // required

	// AdminToken is the sum (SumOf) of the admin token. Zero: the admin side refuses everyone.
	AdminToken store.Sum

	LeaseTTL  time.Duration // 10 s: how long a lease lives without a heartbeat
	Heartbeat time.Duration // three tenths of LeaseTTL: the pace agents are told
	PollWait  time.Duration // 30 s: a poll's wait if it names none, and what links recommend
	PollCap   time.Duration // 50 s: below the 60 s after which common proxies cut a silent request
	KeyTTL    time.Duration // 24 h: an API key's life
	NonceTTL  time.Duration // 5 min: enough for a person to type a passphrase between challenge and link

	// Encodings offered for logs. zstd and gzip are always among them. Default: zstd, gzip, snappy.
	Encodings []string

	Limits  Limits
	Rates   Rates
	Queries query.Config

	Logger   *zap.Logger          // nil: nothing is logged
	Registry *prometheus.Registry // nil: one of its own; served at /metrics
}

// Limits bound what one request may bring. Sizes in bytes, names in characters.
type Limits struct {
	JSONBody   int64 // 1 MiB
	Payload    int   // 256 KiB
	Result     int   // 256 KiB
	LogBody    int64 // 8 MiB, as sent
	LogDecoded int64 // 32 MiB
	Record     int   // 1 MiB, one encoded line
	Name       int   // 128: a type, a label's name or value
	Key        int   // 256: an idempotency key
	Page       int   // 1000: the most items of a listing

	// Holds is how many requests may wait at once (20,000: ten for each of 2,000 agents), AgentHolds how many
	// of one agent's (256). A poll beyond them is unavailable, a heartbeat is answered without a hold.
	Holds, AgentHolds int
	// LogMemory bounds the log bodies in memory at once (256 MiB). Above it: unavailable.
	LogMemory int64
	// BodyTime is how long a JSON body may take to arrive (30 s). A log body gets that, plus the time its size needs at BodyRate.
	BodyTime time.Duration
	BodyRate int64 // 8 KiB/s: a slow modem still passes, one byte a second doesn't
}

// Rates bound how often something may happen, as token buckets.
type Rates struct {
	// Credential is for the calls of one API key or admin token: 2000/s, burst 4000, far above one agent at full speed.
	Credential      rate.Limit
	CredentialBurst int
	// Link is for challenges and links from one address: 100/s, burst 1000, so that a fleet behind one NAT can return.
	Link      rate.Limit
	LinkBurst int
	// Failure is for refused credentials from one address: 20/s, burst 200.
	Failure      rate.Limit
	FailureBurst int
	// Entries bounds each table; the longest unused entry makes room: 10,000.
	Entries int
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (c Config) withDefaults() Config {
	def(&c.LeaseTTL, 10*time.Second)
	def(&c.Heartbeat, c.LeaseTTL*3/10)
	def(&c.PollCap, 50*time.Second)
	def(&c.PollWait, min(30*time.Second, c.PollCap))
	def(&c.KeyTTL, 24*time.Hour)
	def(&c.NonceTTL, 5*time.Minute)
	if c.Encodings == nil {
		c.Encodings = []string{encZstd, encGzip, encSnappy}
	}
	l := &c.Limits
	def(&l.JSONBody, 1<<20)
	def(&l.Payload, 256<<10)
	def(&l.Result, 256<<10)
	def(&l.LogBody, 8<<20)
	def(&l.LogDecoded, 32<<20)
	def(&l.Record, 1<<20)
	def(&l.Name, 128)
	def(&l.Key, 256)
	def(&l.Page, 1000)
	def(&l.Holds, 20_000)
	def(&l.AgentHolds, 256)
	def(&l.LogMemory, 256<<20)
	def(&l.BodyTime, 30*time.Second)
	def(&l.BodyRate, 8<<10)
	r := &c.Rates
	def(&r.Credential, 2000)
	def(&r.CredentialBurst, 4000)
	def(&r.Link, 100)
	def(&r.LinkBurst, 1000)
	def(&r.Failure, 20)
	def(&r.FailureBurst, 200)
	def(&r.Entries, 10_000)
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("controlplane: "+format, args...))
	}
	if c.Store == nil {
		bad("Store: is required")
	}
	// Below 100 ms the reaper and the held heartbeats would be busy with nothing else.
	if c.LeaseTTL < 100*time.Millisecond || c.LeaseTTL > time.Hour {
		bad("LeaseTTL: %v is not within 100ms and 1h", c.LeaseTTL)
	}
	if c.Heartbeat <= 0 || c.Heartbeat > c.LeaseTTL/2 {
		bad("Heartbeat: %v must be positive and at most half of LeaseTTL, or one missed heartbeat loses the lease", c.Heartbeat)
	}
	if c.PollWait < 0 || c.PollWait > c.PollCap {
		bad("PollWait: %v is not within 0 and PollCap (%v)", c.PollWait, c.PollCap)
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"PollCap", c.PollCap}, {"KeyTTL", c.KeyTTL}, {"NonceTTL", c.NonceTTL}, {"Limits.BodyTime", c.Limits.BodyTime}} {
		if d.v <= 0 {
			bad("%s: %v must be positive", d.name, d.v)
		}
	}
	for _, e := range c.Encodings {
		if e != encZstd && e != encGzip && e != encSnappy {
			bad("Encodings: %q is unknown; allowed: zstd, gzip, snappy", e)
		}
	}
	for _, must := range []string{encZstd, encGzip} {
		if !slices.Contains(c.Encodings, must) {
			bad("Encodings: every server takes %s", must)
		}
	}
	l := c.Limits
	if min(l.JSONBody, l.LogBody, l.LogDecoded, l.LogMemory, l.BodyRate, int64(l.Payload), int64(l.Result), int64(l.Record),
		int64(l.Name), int64(l.Key), int64(l.Page), int64(l.Holds), int64(l.AgentHolds)) < 0 {
		bad("Limits: none may be negative")
	}
	return errors.Join(faults...)
}
