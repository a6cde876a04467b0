package identity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent/identity"
	"agentd/agent/protocol"
)

var serial atomic.Int64

// signer is an authority, or a certificate that one has signed.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newSigner(t *testing.T, by *signer, name string) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	parent := &signer{cert: template, key: key}
	if by != nil {
		parent = by
	} else {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, &key.PublicKey, parent.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{cert: cert, key: key}
}

func (s *signer) tls() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{s.cert.Raw}, PrivateKey: s.key}
}

func (s *signer) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.cert)
	return pool
}

// write puts the certificate, and its key if wanted, in place as a careful operator does: by rename.
func (s *signer) write(t *testing.T, certFile, keyFile string) {
	t.Helper()
	put := func(path, kind string, der []byte) {
		data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	if keyFile != "" {
		der, err := x509.MarshalPKCS8PrivateKey(s.key)
		if err != nil {
			t.Fatal(err)
		}
		put(keyFile, "PRIVATE KEY", der)
	}
	put(certFile, "CERTIFICATE", s.cert.Raw)
}

// served is a TLS server that shows cert, wants clients of clients' authority if there is one,
// and notes whom it saw.
func served(t *testing.T, cert *signer, clients *signer, saw *atomic.Value) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 && saw != nil {
			saw.Store(r.TLS.PeerCertificates[0].Subject.CommonName)
		}
		io.WriteString(w, `{"next":1}`)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert.tls()}, MinVersion: tls.VersionTLS12}
	if clients != nil {
		s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, clients.pool()
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// ask makes one call over a connection of its own.
func ask(t *testing.T, url string, cfg *tls.Config) error {
	t.Helper()
	c, err := protocol.NewClient(protocol.ClientConfig{Server: url, TLS: cfg})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.LogNext(t.Context(), protocol.AttemptRef{JobID: "j", Attempt: 1, LeaseToken: "l"})
	return err
}

func TestTLSFilesAreReadAgainWhenTheyChange(t *testing.T) {
	dir := t.TempDir()
	files := identity.TLSFiles{CAFile: filepath.Join(dir, "ca"), CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key")}
	ca1, ca2, clients := newSigner(t, nil, "ca-1"), newSigner(t, nil, "ca-2"), newSigner(t, nil, "clients")
	var saw atomic.Value
	one := served(t, newSigner(t, ca1, "127.0.0.1"), clients, &saw)
	two := served(t, newSigner(t, ca2, "127.0.0.1"), clients, &saw)
	ca1.write(t, files.CAFile, "")
	newSigner(t, clients, "client-1").write(t, files.CertFile, files.KeyFile)
	cfg, err := identity.TLSConfig(files, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(t, one.URL, cfg); err != nil || saw.Load() != "client-1" {
		t.Fatalf("got %v, %v, want client-1", err, saw.Load())
	}
	if err := ask(t, two.URL, cfg); err == nil || !strings.Contains(err.Error(), "set tls.ca_file") {
		t.Fatalf("another authority's server: got %v", err)
	}

	ca2.write(t, files.CAFile, "")
	newSigner(t, clients, "client-2").write(t, files.CertFile, files.KeyFile)
	if err := ask(t, two.URL, cfg); err != nil || saw.Load() != "client-2" {
		t.Fatalf("after the change: got %v, %v, want client-2", err, saw.Load())
	}
	if err := ask(t, one.URL, cfg); err == nil {
		t.Fatal("the old authority is still trusted")
	}

	// Half a rotation: the last good pair stays in use.
	if err := os.WriteFile(files.KeyFile, []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.CAFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, two.URL, cfg); err != nil || saw.Load() != "client-2" {
		t.Fatalf("half way: got %v, %v, want client-2", err, saw.Load())
	}
}

// Certificates of one size and one modification time, as in an image whose files all have the same, are told apart.
func TestTLSFilesAreToldApartByMoreThanTimeAndSize(t *testing.T) {
	dir := t.TempDir()
	files := identity.TLSFiles{CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key")}
	clients := newSigner(t, nil, "clients")
	subject := func(cfg *tls.Config) string {
		t.Helper()
		cert, err := cfg.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.Subject.CommonName
	}
	put := func(name string) {
		t.Helper()
		newSigner(t, clients, name).write(t, files.CertFile, files.KeyFile)
		for _, file := range []string{files.CertFile, files.KeyFile} {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			const size = 2048
			text = append(text, strings.Repeat("\n", size-len(text))...)
			if err := errors.Join(os.WriteFile(file, text, 0o600), os.Chtimes(file, time.Time{}, time.Unix(1, 0))); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("client-1")
	cfg, err := identity.TLSConfig(files, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := subject(cfg); got != "client-1" {
		t.Fatalf("got %s", got)
	}
	put("client-2")
	if got := subject(cfg); got != "client-2" {
		t.Errorf("got %s after the change, want client-2", got)
	}
}

// TestACAFileDoesNotWeakenVerification: our own verification refuses what crypto/tls would.
func TestACAFileDoesNotWeakenVerification(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca")
	ca := newSigner(t, nil, "ca")
	ca.write(t, file, "")
	cfg, err := identity.TLSConfig(identity.TLSFiles{CAFile: file}, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cert *signer
		want string
	}{
		"good":                  {newSigner(t, ca, "127.0.0.1"), ""},
		"another address":       {newSigner(t, ca, "127.0.0.2"), "is for 127.0.0.2, not for 127.0.0.1"},
		"a name for an address": {newSigner(t, ca, "localhost"), "is for localhost, not for 127.0.0.1"},
		"self-signed":           {newSigner(t, nil, "127.0.0.1"), "doesn't trust"},
		"another authority":     {newSigner(t, newSigner(t, nil, "ca"), "127.0.0.1"), "doesn't trust"},
	} {
		err := ask(t, served(t, c.cert, nil, nil).URL, cfg)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	url := strings.Replace(served(t, newSigner(t, ca, "127.0.0.1"), nil, nil).URL, "127.0.0.1", "localhost", 1)
	if err := ask(t, url, cfg); err == nil || !strings.Contains(err.Error(), "not for localhost") {
		t.Errorf("an address's certificate for a name: got %v", err)
	}
}

func TestTLSFilesThatAreWrongAreSaidSo(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, files := range map[string]identity.TLSFiles{
		"tls.cert_file and tls.key_file go together": {CertFile: empty},
		"tls.cert_file: tls: failed to find any PEM": {CertFile: empty, KeyFile: empty},
		"tls.ca_file: " + empty + " holds no PEM":    {CAFile: empty},
		"tls.ca_file: open /nowhere: no such file":   {CAFile: "/nowhere"},
	} {
		if _, err := identity.TLSConfig(files, "h"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	cfg, err := identity.TLSConfig(identity.TLSFiles{}, "")
	if err != nil || cfg.MinVersion != tls.VersionTLS12 || cfg.InsecureSkipVerify {
		t.Errorf("no files: got %+v, %v", cfg, err)
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	ca := newSigner(t, nil, "ca")
	s := httptest.NewUnstartedServer(nil)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{newSigner(t, ca, "127.0.0.1").tls()}, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	err := ask(t, s.URL, &tls.Config{RootCAs: ca.pool(), MinVersion: tls.VersionTLS10})
	if e, ok := errors.AsType[*protocol.Error](err); !ok || !strings.Contains(e.Detail, "no TLS 1.2 or later") {
		t.Fatalf("got %v", err)
	}
}
