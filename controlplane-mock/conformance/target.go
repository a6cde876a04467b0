package conformance

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// Target is the server under test.
type Target struct {
	URL        string // where agents go
	AdminURL   string // where admins go; empty: URL
	AdminToken string
	// Peers are the agents' URLs of further instances of the same control plane. Without them what the protocol promises
	// for every instance is skipped.
	Peers []string
	// HTTP replaces the client, for TLS. It must not have a timeout below a minute, and follows no redirects.
	HTTP *http.Client
	// Faults says that the server injects faults (/mock/v1). Their checks run alone and disturb every other client.
	Faults bool
	// Restart stops the server as a crash would and starts it again at the same URL. nil: what holds over a restart is skipped.
	Restart func(context.Context) error
	// Shutdown stops the server as its operator would and starts it again at the same URL. nil: how it says goodbye is skipped.
	Shutdown func(context.Context) error
	// Quick leaves out the checks that have to wait for about a minute, because the protocol's own bound is that long.
	Quick bool
	// Strict has a check fail that fails once. Otherwise it is tried again, alone, for it may have been this machine that was late.
	Strict bool
	// Only, if not nil, selects the checks by name.
	Only *regexp.Regexp
	// Workers is how many checks run at once; 0: 24. Most of them wait most of the time.
	Workers int
}

func (t Target) withDefaults() Target {
	t.URL, t.AdminURL = strings.TrimRight(t.URL, "/"), strings.TrimRight(t.AdminURL, "/")
	if t.AdminURL == "" {
		t.AdminURL = t.URL
	}
	if t.Workers <= 0 {
		t.Workers = 24
	}
	return t
}

func (t Target) validate() error {
	var faults []error
	for name, s := range map[string]string{"URL": t.URL, "AdminURL": t.AdminURL} {
		if u, err := url.Parse(s); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			faults = append(faults, errors.New("conformance: "+name+": want http://HOST:PORT or https://HOST:PORT"))
		}
	}
	if t.AdminToken == "" {
		faults = append(faults, errors.New("conformance: AdminToken: is required"))
	}
	return errors.Join(faults...)
}
