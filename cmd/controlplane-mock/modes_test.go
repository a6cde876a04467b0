package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentd/agent/protocol"
)

// TestFaultsOverTheCommand: the batch is stored, its answer lost; sent again it is stored once.
func TestFaultsOverTheCommand(t *testing.T) {
	s := serving(t, "--faults")
	a := link(t, s)
	job := s.must("submit", "--type", "shell")
	run := a.take()
	s.must("faults", "set", `[{"method":"POST","path":"/agent/v1/jobs/*/attempts/*/logs","mode":"dropResponse","count":1}]`)
	raw := protocol.AppendRecord(nil, protocol.Record{Time: 1, Stream: protocol.Stdout, Text: "once"})
	body := protocol.LogBody{First: 0, Count: 1, Frames: [][]byte{raw}}
	if _, err := a.c.ShipLog(t.Context(), run.ref(), body); err == nil {
		t.Fatal("the answer came, want it dropped")
	}
	s.cli("faults").want(t, 0, "the first 1 (1 so far)", "")
	next, err := a.c.ShipLog(t.Context(), run.ref(), body)
	if err != nil || next.Next != 1 {
		t.Fatalf("sent again: got %+v, %v, want next 1", next, err)
	}
	run.complete(protocol.Completion{Outcome: protocol.Succeeded, LogRecords: 1})
	s.cli("logs", job).want(t, 0, "once\n", "")
	s.must("faults", "clear")
	s.cli("faults", "set", `[{"mode":"explode"}]`).want(t, 1, "", `mode "explode" is unknown`)
	s.cli("faults", "--json").want(t, 0, `{"rules":[]}`, "")
}

func TestFaultsAreOffUnlessAskedFor(t *testing.T) {
	s := serving(t)
	s.cli("faults", "set", `[]`).want(t, 1, "", "without --faults")
	s.cli("outage", "refuse").want(t, 1, "", "without --faults")
}

func TestFaultsNeedTheAdminToken(t *testing.T) {
	s := serving(t, "--faults")
	other := writeFile(t, "token", someToken, 0o600)
	invoke(t, "", "faults", "clear", "--url", s.url, "--admin-token-file", other).want(t, exitNotPermitted, "", "isn't this server's")
}

// TestOutageOverTheCommand: the agents' port is down, the admin's isn't, and no lease runs out.
func TestOutageOverTheCommand(t *testing.T) {
	s := serving(t, "--faults", "--lease-ttl", "2s")
	admin := freeAddr(t)
	s.stop()
	agents := s.url
	s.flags = append(s.flags, "--admin-listen", admin)
	s.start()
	s.url = "http://" + admin
	a := linkWith(t, s, protocol.ClientConfig{Server: agents})
	job := s.must("submit", "--type", "shell")
	run := a.take()
	s.must("outage", "refuse", "--for", "1m")
	if _, err := net.Dial("tcp", strings.TrimPrefix(agents, "http://")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("agents' port: got %v, want %v", err, unix.ECONNREFUSED)
	}
	// More than a TTL passes with the agent cut off: what is waited for is that nothing happens.
	<-time.After(3 * time.Second)
	s.cli("job", job).want(t, 0, "running", "")
	s.must("outage", "--end")
	run.beat(0)
	run.complete(protocol.Completion{Outcome: protocol.Succeeded})
	s.cli("outage", "sulk").want(t, 1, "", "sulk")

	// A partition is another matter: the server goes on, and the lease runs out.
	job = s.must("submit", "--type", "shell", "--max-attempts", "1")
	a.take()
	s.must("outage", "blackhole", "--for", "1m", "--partition")
	p := start(t, s.args("logs", "-f", job)...)
	if code := p.wait(t); code != 0 {
		t.Errorf("logs: got %d, want 0\n%s", code, p.stderr)
	}
	s.cli("job", job).want(t, 0, "lost", "")
	s.stop() // during an outage, too
}

func TestTLSWithAThrowAwayCA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	s := serving(t, "--tls-self-signed", dir, "--client-ca", filepath.Join(dir, caCertFile))
	s.url = "https://" + s.listen
	if !strings.Contains(s.p.stdout.String(), s.url) || !strings.Contains(s.p.stdout.String(), filepath.Join(dir, caCertFile)) {
		t.Errorf("serve printed\n%s\nwant the https URL and the CA's file", s.p.stdout)
	}
	s.cli("jobs").want(t, 3, "", "unknown authority")
	s.cli("jobs", "--ca-file", filepath.Join(dir, caCertFile)).want(t, 3, "", "")
	with := []string{"--ca-file", filepath.Join(dir, caCertFile), "--cert-file", filepath.Join(dir, clientCertFile), "--key-file", filepath.Join(dir, clientKeyFile)}
	s.cli("jobs", with...).want(t, 0, "JOB", "")

	ca, err := os.ReadFile(filepath.Join(dir, caCertFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{caKeyFile, serverKeyFile, clientKeyFile} {
		if info, err := os.Stat(filepath.Join(dir, f)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v, want mode 0600", f, info, err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client, err := tls.LoadX509KeyPair(filepath.Join(dir, clientCertFile), filepath.Join(dir, clientKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{client}}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get(s.url + "/healthz")
	if err != nil || resp.ProtoMajor != 2 {
		t.Fatalf("got %v, %v, want HTTP/2", resp, err)
	}
	resp.Body.Close()
	s.stop()
	// The CA stays over a restart, so that agents go on trusting it.
	s.start()
	s.cli("jobs", with...).want(t, 0, "JOB", "")
	if again, err := os.ReadFile(filepath.Join(dir, caCertFile)); err != nil || string(again) != string(ca) {
		t.Errorf("the CA changed over a restart (%v)", err)
	}
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	if err := throwAwayCA(dir, nil); err != nil {
		t.Fatal(err)
	}
	p := &reloadedPair{cert: filepath.Join(dir, serverCertFile), key: filepath.Join(dir, serverKeyFile)}
	serial := func() string {
		t.Helper()
		c, err := p.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.SerialNumber.String()
	}
	first := serial()
	if err := os.WriteFile(p.cert, []byte("half a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got != first {
		t.Errorf("while the files don't fit: got %s, want the last good one %s", got, first)
	}
	if err := throwAwayCA(dir, nil); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got == first {
		t.Error("renewed: got the old certificate")
	}
}
