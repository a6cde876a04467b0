package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What a throw-away CA's directory holds. client.pem and client-key.pem are for --client-ca DIR/ca.pem.
const (
	caCertFile     = "ca.pem"
	caKeyFile      = "ca-key.pem"
	serverCertFile = "server.pem"
	serverKeyFile  = "server-key.pem"
	clientCertFile = "client.pem"
	clientKeyFile  = "client-key.pem"
)

// throwAwayLife: long enough for any test, short enough that nobody builds on it.
const throwAwayLife = 30 * 24 * time.Hour

// throwAwayCA makes a CA, a server certificate for addrs and this machine's names, and a client
// certificate, unless a valid CA is there already; the server's is made anew each time, since the
// addresses may have changed.
func throwAwayCA(dir string, addrs []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("throw-away CA: %w", err)
	}
	ca, err := loadIssuer(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && time.Until(ca.cert.NotAfter) < 24*time.Hour {
		ca, err = newIssuer(dir)
	}
	if err != nil {
		return fmt.Errorf("throw-away CA in %s: %w; remove the directory, and it is made anew", dir, err)
	}
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	server := &x509.Certificate{
		Subject: pkix.Name{CommonName: "controlplane-mock"}, DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, a := range addrs {
		host, _, err := net.SplitHostPort(a)
		if err != nil || host == "" {
			continue
		}
		if ip := net.ParseIP(host); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, host)
		}
	}
	client := &x509.Certificate{
		Subject: pkix.Name{CommonName: "agent"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	return errors.Join(
		ca.issue(server, filepath.Join(dir, serverCertFile), filepath.Join(dir, serverKeyFile)),
		ca.issue(client, filepath.Join(dir, clientCertFile), filepath.Join(dir, clientKeyFile)),
	)
}

type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func loadIssuer(dir string) (*issuer, error) {
	certPEM, err := os.ReadFile(filepath.Join(dir, caCertFile))
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(filepath.Join(dir, caKeyFile))
	if err != nil {
		return nil, err
	}
	c, _ := pem.Decode(certPEM)
	k, _ := pem.Decode(keyPEM)
	if c == nil || k == nil {
		return nil, errors.New("not PEM")
	}
	cert, err := x509.ParseCertificate(c.Bytes)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(k.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("not a key of ours")
	}
	return &issuer{cert, ec}, nil
}

func newIssuer(dir string) (*issuer, error) {
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "controlplane-mock throw-away CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	self := &issuer{}
	if err := self.issue(ca, filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile)); err != nil {
		return nil, err
	}
	return loadIssuer(dir)
}

// issue signs c with a fresh key, or lets it sign itself if i has no certificate, and writes both files.
func (i *issuer) issue(c *x509.Certificate, certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return err
	}
	now := time.Now()
	c.NotBefore, c.NotAfter = now.Add(-time.Hour), now.Add(throwAwayLife) // an hour for clocks that are off
	parent, signer := c, key
	if i.cert != nil {
		parent, signer = i.cert, i.key
		c.KeyUsage = x509.KeyUsageDigitalSignature
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := replaceFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600); err != nil {
		return err
	}
	return replaceFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// replaceFile writes a file under another name first, so that nobody reads half of it.
func replaceFile(file string, data []byte, mode fs.FileMode) error {
	tmp := file + ".new"
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

// stampOf changes when one of the files does. Times and sizes of contents alone don't tell: two certificates are often of
// one size, and files may have been given one time.
func stampOf(files ...string) (string, error) {
	var stamp strings.Builder
	for _, f := range files {
		var st unix.Stat_t
		if err := unix.Stat(f, &st); err != nil {
			return "", &fs.PathError{Op: "stat", Path: f, Err: err}
		}
		fmt.Fprintln(&stamp, st.Ino, st.Mtim, st.Ctim, st.Size)
	}
	return stamp.String(), nil
}
