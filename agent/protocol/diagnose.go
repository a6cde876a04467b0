package protocol

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// proxyError is a proxy that refused to connect us.
type proxyError struct {
	proxy  string
	status int
}

func (e *proxyError) Error() string {
	return fmt.Sprintf("proxy %s answered %d %s", e.proxy, e.status, http.StatusText(e.status))
}

const wantsPassword = "the proxy wants a password: give it as in HTTPS_PROXY=http://user:password@proxy:3128"

// explainStatus says what a status without a known code means and what to do about it.
func explainStatus(answer *http.Response, body []byte) string {
	switch status := answer.StatusCode; {
	case status/100 == 3:
		return "redirected to " + location(answer) + ": redirects are not followed; name the control plane's own URL as the server"
	case status == http.StatusProxyAuthRequired:
		return wantsPassword
	case status == http.StatusBadRequest && bytes.Contains(body, []byte("HTTP request to an HTTPS server")):
		return "the server speaks TLS on this port: use https://"
	case status == http.StatusRequestEntityTooLarge:
		return "a proxy or the server takes no body as large as this one"
	case status == http.StatusTooManyRequests:
		return "a proxy or the server asks to be called less often"
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly,
		status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		return "a proxy or the server can't answer now"
	case status == http.StatusNotImplemented, status == http.StatusHTTPVersionNotSupported:
		return "whoever answers at the server's URL doesn't support this request; is it a control plane?"
	case status/100 == 5:
		return "the server, or a proxy before it, failed"
	default:
		return notOurs(answer, "no known code")
	}
}

// location is where a redirect leads, without its query, which may hold anything.
func location(answer *http.Response) string {
	u, err := url.Parse(answer.Header.Get("Location"))
	if err != nil || u.String() == "" {
		return "somewhere unnamed"
	}
	return clean((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
}

// transportError is the error of a call that got no (whole) answer.
func (c *Client) transportError(parent context.Context, k *call, status int, err error) error {
	e := &Error{Op: k.op, Err: err}
	if parent.Err() != nil {
		e.Err = fmt.Errorf("%w (%w)", parent.Err(), context.Cause(parent))
		if errors.Is(context.Cause(parent), parent.Err()) {
			e.Err = context.Cause(parent)
		}
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		e.Detail = fmt.Sprintf("no answer within %v", k.timeout)
		return e
	}
	if status != 0 {
		e.Detail = fmt.Sprintf("the answer (%d) broke off", status)
		return e
	}
	if errors.Is(err, errCut) {
		return e
	}
	e.Detail = c.explain(err)
	if p, ok := errors.AsType[*proxyError](err); ok {
		e.Status = p.status // so that 407, 502 and 504 are told apart
	}
	return e
}

// explain names cause and fix of a request that got no answer.
func (c *Client) explain(err error) string {
	host := c.base.Hostname()
	if text := explainCertificate(err, host, time.Now(), c.Skew()); text != "" {
		return text
	}
	if p, ok := errors.AsType[*proxyError](err); ok {
		if p.status == http.StatusProxyAuthRequired {
			return wantsPassword
		}
		return "the proxy won't connect to " + c.base.Host + ": is it allowed there?"
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.IsNotFound {
			return "there is no host named " + dns.Name + ": check the server's URL and this machine's DNS"
		}
		return "the name " + dns.Name + " could not be looked up: check this machine's DNS"
	}
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case isPlain(err):
		return "the server speaks plain HTTP on this port: is it the wrong port, or a server without TLS?"
	case op != nil && op.Op == "proxyconnect":
		return "the proxy can't be reached: check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
	case op != nil && op.Op == "remote error":
		return explainAlert(op.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens on " + c.base.Host + ": is the control plane running, and the port right?"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "there is no route to " + c.base.Host + ": check the network"
	case strings.Contains(err.Error(), "client conn could not be established"):
		// net/http's own words, of an unexported error: an HTTP/2 connection that ended before the request could be sent, whatever
		// the alert was that ended it. A server that refuses a client certificate does so just then (TLS 1.3).
		return "the server ended the connection as soon as it was made: does it want a client certificate (tls.cert_file, tls.key_file), " +
			"or refuse this machine's (check its expiry, and that the server knows its authority)?"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the connection was cut before the answer"
	case op != nil && op.Timeout():
		return c.base.Host + " doesn't answer: check the network and firewalls"
	}
	return ""
}

// isPlain tells whether the other side answered a TLS handshake with something else.
func isPlain(err error) bool {
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	return plain
}

// explainAlert reads what the server's TLS said. The alerts have no exported type: their texts are RFC 8446's.
func explainAlert(alert error) string {
	text := alert.Error()
	switch {
	case strings.Contains(text, "certificate required"), strings.Contains(text, "handshake failure"):
		return "the server wants a client certificate: set tls.cert_file and tls.key_file"
	case strings.Contains(text, "certificate"), strings.Contains(text, "unknown certificate authority"):
		return "the server refused this machine's client certificate: check tls.cert_file, its expiry, and that the server knows its authority"
	case strings.Contains(text, "protocol version"):
		return "the server speaks no TLS 1.2 or later"
	}
	return ""
}

// explainCertificate says why a server's certificate was refused, in words that lead to the fix.
func explainCertificate(err error, host string, now time.Time, skew time.Duration) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		issuer := "an authority"
		if v, ok := errors.AsType[*tls.CertificateVerificationError](err); ok && len(v.UnverifiedCertificates) > 0 {
			issuer = "the authority \"" + clean(v.UnverifiedCertificates[0].Issuer.String()) + "\""
		}
		return "the server's certificate is signed by " + issuer + " that this machine doesn't trust: set tls.ca_file to that authority's certificate (a TLS-inspecting proxy shows the same)"
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		names := append([]string{}, e.Certificate.DNSNames...)
		for _, ip := range e.Certificate.IPAddresses {
			names = append(names, ip.String())
		}
		valid := "no name at all"
		if len(names) > 0 {
			valid = clean(strings.Join(names, ", "))
		}
		return fmt.Sprintf("the server's certificate is for %s, not for %s: use one of its names in the server's URL, or have it reissued", valid, host)
	}
	e, ok := errors.AsType[x509.CertificateInvalidError](err)
	if !ok || e.Cert == nil {
		return ""
	}
	if e.Reason != x509.Expired {
		return "the server's certificate can't be used: have it reissued"
	}
	clock := "if this machine's clock (" + now.UTC().Format(time.RFC3339) + ") is right"
	if skew.Abs() >= largeSkew {
		clock = fmt.Sprintf("but this machine's clock was last seen %v %s the server's: set it", skew.Abs(), aheadOrBehind(skew))
	}
	if now.Before(e.Cert.NotBefore) {
		return fmt.Sprintf("the server's certificate becomes valid on %s, in %v: this machine's clock (%s) is behind by at least that; set it",
			e.Cert.NotBefore.UTC().Format(time.RFC3339), e.Cert.NotBefore.Sub(now).Round(time.Second), now.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("the server's certificate expired on %s, %v ago: have it renewed, %s",
		e.Cert.NotAfter.UTC().Format(time.RFC3339), now.Sub(e.Cert.NotAfter).Round(time.Second), clock)
}

func aheadOrBehind(skew time.Duration) string {
	if skew > 0 {
		return "ahead of"
	}
	return "behind"
}
