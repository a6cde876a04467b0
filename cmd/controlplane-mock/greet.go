package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
)

// isAgentSide says whether a path belongs to the agents where one port serves both sides.
func isAgentSide(path string) bool { return strings.HasPrefix(path, "/agent/") }

// urls are the agents' and the admin side's base URLs.
func (s *service) urls(secure bool) [2]string {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	first, last := s.ports[0], s.ports[len(s.ports)-1]
	return [2]string{scheme + "://" + reachable(first.addr), scheme + "://" + reachable(last.addr)}
}

// reachable turns "all addresses" into one that can be dialled from here.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

type greeting struct {
	urls      [2]string // agents, admin
	tokenFile string
	caFile    string // of a throw-away CA
	clientCA  bool
	faults    bool
}

// greet prints how to go on. Everything in it can be pasted into a shell.
func (a *app) greet(g greeting) {
	file, err := filepath.Abs(g.tokenFile)
	if err != nil {
		file = g.tokenFile
	}
	flags := "--url " + quote(g.urls[1]) + " --admin-token-file " + quote(file)
	if g.caFile != "" {
		flags += " --ca-file " + quote(g.caFile)
	}
	if g.clientCA {
		flags += " --cert-file CERT --key-file KEY"
	}
	p := func(format string, args ...any) { fmt.Fprintf(a.stdout, format+"\n", args...) }
	p("The control plane serves agents on %s", g.urls[0])
	if g.urls[0] != g.urls[1] {
		p("and the admin side on %s", g.urls[1])
	}
	p("Admin token: %s", file)
	if g.caFile != "" {
		p("CA certificate, to be trusted by agents (tls.ca_file): %s", g.caFile)
	}
	p("")
	p("Link an agent (its config file names state_dir and handlers):")
	p("  controlplane-mock token %s | agentd link --config agentd.yaml --server %s --token-file -", flags, quote(g.urls[0]))
	p("Run a first job (the agent lists the type shell):")
	p("  controlplane-mock run %s -- echo hello", flags)
	if g.faults {
		p("Inject faults (docs/control-plane.md has all modes):")
		p("  controlplane-mock outage refuse --for 20s %s", flags)
	}
	p("")
}
