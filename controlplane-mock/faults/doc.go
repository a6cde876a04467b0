// Package faults makes an HTTP server misbehave on demand: single answers by rule (Injector),
// and the whole port by outage (Outage). It stands in front of any http.Handler and any
// net.Listener, so that people can try their own agents, clients and servers with it.
//
// What each mode promises about the two sides, since that is what a test relies on:
//
//	mode          the handler           the client sees
//	status        not called            the status; with a code, problem+json; without, a plain page as a proxy gives
//	html          not called            200 and a page: a captive portal
//	reset         not called            a reset connection (HTTP/2: a reset stream)
//	hang          not called            nothing, until it leaves or the rules change
//	slow          called after delayMs  the answer, late; committed even if the client has left
//	dropResponse  called, commits       a connection that closes without an answer
//	truncate      called, commits       the right status and length, half of the body, then the connection closes
//
// Request bodies are read before any of that (but for reset), so that a client never sees a
// failed write where it should see the fault, and so that a client that leaves is noticed.
//
// An outage is not a rule: refuse shuts the listening socket down, so that the kernel refuses;
// blackhole accepts and says nothing. Both take connections that are open. Where one port
// serves both the agents and the admin side, the outage works on requests instead.
package faults
