package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Config is a fleet. Zero values are the documented defaults.
type Config struct {
	URLs       []string // of the control plane's instances; agents are dealt out in turn
	AdminURL   string   // default: the first of URLs
	AdminToken string
	Agents     int           // required
	Type       string        // of the jobs that they take; "fleet"
	PollWait   time.Duration // 30 s
	Beat       time.Duration // how long a heartbeat asks to be held; default: the pace that the server names
	Job        Job
	// Linkers is how many agents link at once; 16. A server allows one address 100 calls a second.
	Linkers int
	// Addresses is how many addresses of 127/8 the agents come from, so that a server on loopback doesn't take them for
	// one; default: one for each 100 agents. Ignored for other servers.
	Addresses int
	// TLS and proxies: replaces the transports. It must allow a connection for each call under way.
	Transport http.RoundTripper
}

// Job is what a job does, unless its payload says otherwise.
type Job struct {
	Duration time.Duration `json:"-"` // 0: it ends at once
	// Lines are printed evenly over the duration, of LineBytes each, and shipped in batches once BatchEvery: what an agent's
	// 250 ms of silence come to when there is always something to say is a batch a second.
	Lines      int           `json:"lines"`
	LineBytes  int           `json:"lineBytes"` // 100
	BatchEvery time.Duration `json:"-"`         // 1 s
}

func (c Config) withDefaults() Config {
	c.Type = cmp.Or(c.Type, "fleet")
	c.PollWait = cmp.Or(c.PollWait, 30*time.Second)
	c.Linkers = cmp.Or(c.Linkers, 16)
	if len(c.URLs) > 0 {
		c.AdminURL = cmp.Or(c.AdminURL, c.URLs[0])
	}
	c.Addresses = cmp.Or(c.Addresses, 1+c.Agents/100)
	c.Job = c.Job.withDefaults()
	return c
}

func (j Job) withDefaults() Job {
	j.LineBytes = cmp.Or(j.LineBytes, 100)
	j.BatchEvery = cmp.Or(j.BatchEvery, time.Second)
	return j
}

func (c Config) validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf("fleet: "+format, args...)) }
	if len(c.URLs) == 0 {
		bad("URLs: at least one is required")
	}
	if c.AdminToken == "" {
		bad("AdminToken: is required")
	}
	if c.Agents <= 0 {
		bad("Agents: must be positive")
	}
	if c.Job.Duration < 0 || c.Job.Lines < 0 || c.Job.LineBytes < 1 {
		bad("Job: nothing may be negative")
	}
	return errors.Join(faults...)
}

// transports make one for each address that agents come from.
func (c Config) transports() []http.RoundTripper {
	if c.Transport != nil {
		return []http.RoundTripper{c.Transport}
	}
	n := c.Addresses
	for _, s := range c.URLs {
		u, err := url.Parse(s)
		if err != nil || !strings.HasPrefix(u.Hostname(), "127.") {
			n = 1 // the kernel chooses
		}
	}
	all := make([]http.RoundTripper, n)
	for i := range all {
		d := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
		if n > 1 {
			d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 1, byte(i>>8), byte(i))}
		}
		all[i] = &http.Transport{
			DialContext:         d.DialContext,
			MaxIdleConnsPerHost: c.Agents, // whoever was idle is about to call again
			IdleConnTimeout:     2 * time.Minute,
			WriteBufferSize:     1 << 10, // a call is small; ten thousand buffers aren't
			ReadBufferSize:      1 << 10,
		}
	}
	return all
}
