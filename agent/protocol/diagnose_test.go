package protocol_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"agentd/agent/protocol"
)

// authority signs certificates for these tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "Test Authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	return a
}

func (a *authority) sign(t *testing.T, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// server serves TLS with a certificate for name, valid from and to as given.
func (a *authority) server(t *testing.T, name string, from, to time.Time, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	template := &x509.Certificate{DNSNames: []string{name}, NotBefore: from, NotAfter: to}
	if ip := net.ParseIP(name); ip != nil {
		template.DNSNames, template.IPAddresses = nil, []net.IP{ip}
	}
	cert, key := a.sign(t, template)
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
	s.Config.ErrorLog = discard()
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (a *authority) trusted() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool}
}

func next(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"next":1}`) }

// TestErrorsNameTheCauseAndTheFix is I4, and D.3.
func TestErrorsNameTheCauseAndTheFix(t *testing.T) {
	a, now := newAuthority(t), time.Now()
	good := a.server(t, "127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour), next)
	expired := a.server(t, "127.0.0.1", now.Add(-48*time.Hour), now.Add(-24*time.Hour), next)
	early := a.server(t, "127.0.0.1", now.Add(24*time.Hour+30*time.Minute+30*time.Second), now.Add(48*time.Hour), next)
	other := a.server(t, "control.example.com", now.Add(-time.Hour), now.Add(time.Hour), next)
	plain := httptest.NewServer(http.HandlerFunc(next))
	defer plain.Close()
	mutual := httptest.NewUnstartedServer(http.HandlerFunc(next))
	mutual.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, Certificates: good.TLS.Certificates}
	mutual.Config.ErrorLog = discard()
	mutual.StartTLS()
	defer mutual.Close()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	defer proxy.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()

	for _, c := range []struct {
		name   string
		server string
		tls    *tls.Config
		proxy  string
		status int
		want   []string // all of them
	}{
		{"unknown authority", good.URL, nil, "", 0, []string{`signed by the authority "CN=Test Authority" that this machine doesn't trust`, "set tls.ca_file"}},
		{"expired", expired.URL, a.trusted(), "", 0, []string{"expired on " + now.Add(-24*time.Hour).UTC().Format("2006-01-02T15:"), "24h0m", "have it renewed", "if this machine's clock"}},
		{"not valid yet", early.URL, a.trusted(), "", 0, []string{"becomes valid on", "in 24h30m", "clock", "is behind by at least that; set it"}},
		{"another name", other.URL, a.trusted(), "", 0, []string{"is for control.example.com, not for 127.0.0.1", "use one of its names in the server's URL"}},
		{"plain server", strings.Replace(plain.URL, "http:", "https:", 1), nil, "", 0, []string{"speaks plain HTTP on this port"}},
		{"TLS server", strings.Replace(good.URL, "https:", "http:", 1), nil, "", 400, []string{"speaks TLS on this port: use https://"}},
		{"no client certificate", mutual.URL, a.trusted(), "", 0, []string{"wants a client certificate: set tls.cert_file and tls.key_file"}},
		{"proxy with a password", "https://control.example.com", nil, proxy.URL, 407, []string{"the proxy wants a password: give it as in HTTPS_PROXY="}},
		{"proxy with a password, plain", "http://control.example.com", nil, proxy.URL, 407, []string{"the proxy wants a password"}},
		{"proxy that is down", "https://control.example.com", nil, "http://" + closed.Addr().String(), 0, []string{"the proxy can't be reached: check HTTPS_PROXY"}},
		{"nothing listens", "http://" + closed.Addr().String(), nil, "", 0, []string{"nothing listens on " + closed.Addr().String(), "is the control plane running"}},
		{"no such host", "https://control.invalid", nil, "", 0, []string{"control.invalid", "check", "DNS"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := protocol.ClientConfig{Server: c.server, TLS: c.tls, Insecure: true}
			cfg.Proxy = http.ProxyURL(nil)
			if c.proxy != "" {
				u, err := url.Parse(c.proxy)
				if err != nil {
					t.Fatal(err)
				}
				cfg.Proxy = http.ProxyURL(u)
			}
			_, err := newClient(t, cfg).LogNext(t.Context(), ref)
			e, ok := errors.AsType[*protocol.Error](err)
			if !ok || e.Status != c.status || e.Code != "" || protocol.ActionFor(err) != protocol.Retry {
				t.Errorf("got %#v, %v, want status %d, no code, retry", e, protocol.ActionFor(err), c.status)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got  %v\nwant %q in it", err, want)
				}
			}
		})
	}
}

func TestAClockThatIsOffIsSaidOnceWithItsSize(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	offset := -2 * time.Hour // of the server's clock
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(offset).UTC().Format(http.TimeFormat))
		next(w, r)
	}))
	defer server.Close()
	client := newClient(t, protocol.ClientConfig{Server: server.URL, Logger: zap.New(core)})
	ask := func() {
		if _, err := client.LogNext(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	ask()
	if got := client.Skew().Round(time.Minute); got != 2*time.Hour || logs.Len() != 1 {
		t.Errorf("got %v with %d log lines, want 2h with 1", got, logs.Len())
	}
	offset = 0
	ask()
	if got := client.Skew().Abs(); got > 30*time.Second || logs.Len() != 2 {
		t.Errorf("got %v with %d log lines, want none with 2", got, logs.Len())
	}
}
