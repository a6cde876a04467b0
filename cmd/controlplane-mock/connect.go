package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentd/controlplane-mock/adminclient"
	"agentd/internal/version"
)

const (
	defaultURL  = "http://127.0.0.1:7070" // where serve listens unless told otherwise
	dialTimeout = 10 * time.Second        // a connection to an admin's own server takes milliseconds
	maxToken    = 4096                    // bytes: a larger file isn't a token
)

// connection is how a client command finds its server.
type connection struct {
	url, tokenFile            string
	caFile, certFile, keyFile string
}

func (c *connection) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&c.url, "url", "", "the control plane (env CONTROLPLANE_URL; default "+defaultURL+")")
	f.StringVar(&c.tokenFile, "admin-token-file", "", "file with the admin token (env CONTROLPLANE_ADMIN_TOKEN_FILE)")
	f.StringVar(&c.caFile, "ca-file", "", "CA certificates to trust instead of the system's (env CONTROLPLANE_CA_FILE)")
	f.StringVar(&c.certFile, "cert-file", "", "client certificate, where the server wants one")
	f.StringVar(&c.keyFile, "key-file", "", "its key")
}

// client makes the client. Everything wrong with it is a matter of configuration.
func (a *app) client() (*adminclient.Client, error) {
	url := cmp.Or(a.conn.url, a.getenv("CONTROLPLANE_URL"), defaultURL)
	file := cmp.Or(a.conn.tokenFile, a.getenv("CONTROLPLANE_ADMIN_TOKEN_FILE"))
	if file == "" {
		return nil, &exitError{exitConfig, errors.New("no admin token: give --admin-token-file FILE or set CONTROLPLANE_ADMIN_TOKEN_FILE (serve prints the file's name)")}
	}
	token, err := readToken(file)
	if err != nil {
		return nil, configError(err)
	}
	if a.http, err = a.transport(); err != nil {
		return nil, configError(err)
	}
	c, err := adminclient.New(adminclient.Config{
		URL: url, Token: token, HTTP: &http.Client{Transport: a.http}, UserAgent: "controlplane-mock/" + version.String(),
	})
	if err != nil {
		return nil, &exitError{exitConfig, err}
	}
	return c, nil
}

// configError is exit code 78, or 4 where the files are there and not for us.
func configError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &exitError{exitNotPermitted, err}
	}
	return &exitError{exitConfig, err}
}

func readToken(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || len(b) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("admin token: %s doesn't hold a token: want one line of printable characters", file)
	}
	return token, nil
}

func (a *app) transport() (*http.Transport, error) {
	// HTTP/1.1: one call at a time needs no more, and what TLS complains about comes through in words.
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if file := cmp.Or(a.conn.caFile, a.getenv("CONTROLPLANE_CA_FILE")); file != "" {
		pool, err := readCAs(file)
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if (a.conn.certFile == "") != (a.conn.keyFile == "") {
		return nil, errors.New("--cert-file and --key-file go together")
	}
	if a.conn.certFile != "" {
		pair, err := tls.LoadX509KeyPair(a.conn.certFile, a.conn.keyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

func readCAs(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA file: %s holds no PEM certificate", file)
	}
	return pool, nil
}
