package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/pflag"
)

// tlsOptions is how serve speaks TLS, if it does.
type tlsOptions struct {
	cert, key  string
	clientCA   string
	selfSigned string
}

func (t *tlsOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&t.cert, "tls-cert", "", "serve TLS with this certificate chain (read again when the file changes)")
	f.StringVar(&t.key, "tls-key", "", "its key")
	f.StringVar(&t.clientCA, "client-ca", "", "want a client certificate of one of these CAs from everyone")
	f.StringVar(&t.selfSigned, "tls-self-signed", "", "serve TLS with a throw-away CA in this directory (made if it isn't there): for tests only")
}

// serverTLS is a TLS configuration whose certificate follows its files.
type serverTLS struct{ cfg *tls.Config }

// load prepares TLS, nil for none. caFile is the throw-away CA's certificate.
func (t *tlsOptions) load(addrs ...string) (s *serverTLS, caFile string, err error) {
	if t.selfSigned != "" {
		if t.cert != "" || t.key != "" {
			return nil, "", usage("--tls-self-signed brings its own certificate: leave --tls-cert and --tls-key out")
		}
		if err := throwAwayCA(t.selfSigned, addrs); err != nil {
			return nil, "", configError(err)
		}
		t.cert, t.key = filepath.Join(t.selfSigned, serverCertFile), filepath.Join(t.selfSigned, serverKeyFile)
		if caFile, err = filepath.Abs(filepath.Join(t.selfSigned, caCertFile)); err != nil {
			return nil, "", err
		}
	}
	switch {
	case (t.cert == "") != (t.key == ""):
		return nil, "", usage("--tls-cert and --tls-key go together")
	case t.cert == "" && t.clientCA != "":
		return nil, "", usage("--client-ca needs TLS: give --tls-cert and --tls-key, or --tls-self-signed")
	case t.cert == "":
		return nil, "", nil
	}
	pair := &reloadedPair{cert: t.cert, key: t.key}
	if _, err := pair.get(nil); err != nil {
		return nil, "", configError(err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"h2", "http/1.1"}}
	if t.clientCA != "" {
		if cfg.ClientCAs, err = readCAs(t.clientCA); err != nil {
			return nil, "", configError(err)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return &serverTLS{cfg}, caFile, nil
}

func (s *serverTLS) listener(ln net.Listener, hs *http.Server) net.Listener {
	hs.TLSConfig = s.cfg
	return tls.NewListener(ln, s.cfg)
}

// reloadedPair is a certificate that is read again when its files change, so that a renewal needs
// no restart. While the new files don't fit together, the last good pair serves.
type reloadedPair struct {
	cert, key string
	last      atomic.Pointer[loadedPair]
}

type loadedPair struct {
	stamp string
	pair  *tls.Certificate
}

func (r *reloadedPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	last := r.last.Load()
	stamp, err := stampOf(r.cert, r.key)
	if last != nil && (err != nil || stamp == last.stamp) {
		return last.pair, nil //nolint:nilerr // files that are being replaced: the last good pair serves
	}
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(r.cert, r.key)
	if err == nil && pair.Leaf == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	if err != nil {
		if last != nil {
			return last.pair, nil
		}
		return nil, errors.Join(errors.New("--tls-cert, --tls-key"), err)
	}
	r.last.Store(&loadedPair{stamp, &pair})
	return &pair, nil
}
