package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority issues certificates, also ones that no sane authority would.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.issue(t, "ca", c)
	return a
}

// file is the path of a certificate, or of its key.
func (a *authority) file(name string) string { return filepath.Join(a.dir, name+".pem") }

// server is a certificate for this host as the tests know it.
func server() *x509.Certificate {
	return &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
}

// client is an agent's, named cn.
func client(cn string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: cn}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// valid sets when c is valid, as seen from now.
func valid(c *x509.Certificate, from, to time.Duration) *x509.Certificate {
	c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to)
	return c
}

// issue writes NAME.pem and NAME-key.pem, and returns the flags by which the control plane serves with them.
func (a *authority) issue(t *testing.T, name string, c *x509.Certificate) (flags []string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		t.Fatal(err)
	}
	if c.NotAfter.IsZero() {
		valid(c, -time.Hour, time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil { // its own
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		a.key = key
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name: {Type: "CERTIFICATE", Bytes: der}, name + "-key": {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"--tls-cert", a.file(name), "--tls-key", a.file(name + "-key")}
}

// pair is an issued certificate with its key.
func (a *authority) pair(t *testing.T, name string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(a.file(name), a.file(name+"-key"))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// trust is for those who trust the authority, and nobody but it.
func (a *authority) trust() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}
