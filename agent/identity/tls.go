package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// TLSFiles are the tls section of the config. All may be empty.
type TLSFiles struct {
	CAFile   string // trusted instead of the system's authorities
	CertFile string // the client certificate, with KeyFile
	KeyFile  string
}

// TLSConfig checks the files and makes a client's config of them. They are read again when
// they change: a rotated certificate or authority needs no restart, and a half-written one
// leaves the last good one in use. host is the server's name or address in its URL.
func TLSConfig(files TLSFiles, host string) (*tls.Config, error) {
	if (files.CertFile == "") != (files.KeyFile == "") {
		return nil, errors.New("identity: tls.cert_file and tls.key_file go together: set both or neither")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if files.CertFile != "" {
		certs := &reloading[*tls.Certificate]{paths: []string{files.CertFile, files.KeyFile}, read: func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
			return &cert, err
		}}
		if _, err := certs.get(); err != nil {
			return nil, fmt.Errorf("identity: tls.cert_file: %w", err)
		}
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certs.get() }
	}
	if files.CAFile != "" {
		roots := &reloading[*x509.CertPool]{paths: []string{files.CAFile}, read: func() (*x509.CertPool, error) { return readRoots(files.CAFile) }}
		if _, err := roots.get(); err != nil {
			return nil, fmt.Errorf("identity: tls.ca_file: %w", err)
		}
		// crypto/tls can't be given other roots later on; verifying here, in the same way, can.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return verify(state, host, roots) }
	}
	return cfg, nil
}

func readRoots(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", path)
	}
	return pool, nil
}

// verify is what crypto/tls does with RootCAs. The state has no server name where the server is
// named by an address; without a name nothing would be compared, so the URL's own is used.
func verify(state tls.ConnectionState, host string, roots *reloading[*x509.CertPool]) error {
	pool, err := roots.get()
	if err != nil {
		return err
	}
	name := state.ServerName
	if name == "" {
		name = host
	}
	if name == "" || len(state.PeerCertificates) == 0 {
		return errors.New("identity: tls: nothing to verify the server by")
	}
	options := x509.VerifyOptions{Roots: pool, DNSName: name, Intermediates: x509.NewCertPool()}
	for _, c := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := state.PeerCertificates[0].Verify(options); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}

// reloading keeps what was read from files until they change.
type reloading[T any] struct {
	paths []string
	read  func() (T, error)

	mu    sync.Mutex
	value T       // guarded by mu
	good  bool    // guarded by mu: value was read once
	seen  []stamp // guarded by mu: the files as they were then
}

// stamp tells a file from what was there before. Time and size of the contents don't: images are made with one time for
// all files, and two certificates are often of one size.
type stamp struct {
	inode             uint64
	modified, changed unix.Timespec
	size              int64
}

func stampOf(path string) stamp {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return stamp{} // reading it says why
	}
	return stamp{st.Ino, st.Mtim, st.Ctim, st.Size}
}

// get looks at the files' stamps at each call, that is, at each TLS handshake: rare enough.
func (r *reloading[T]) get() (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := make([]stamp, len(r.paths))
	for i, p := range r.paths {
		now[i] = stampOf(p)
	}
	if r.good && slices.Equal(now, r.seen) {
		return r.value, nil
	}
	value, err := r.read()
	if err != nil {
		if r.good {
			return r.value, nil // half replaced: seen isn't updated, so the next call reads again
		}
		return value, err
	}
	r.value, r.good, r.seen = value, true, now
	return value, nil
}
