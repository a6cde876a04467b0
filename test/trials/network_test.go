package trials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

const proxyHost = "controlplane.test"

// What the proxy does to connections.
const (
	forward  = "forward"
	refuse   = "the server refuses connections"
	hang     = "accepts and never answers"
	trickle  = "answers one byte a second"
	noName   = "fails DNS"
	wrongTLS = "fails TLS"
)

// proxy ends the agent's TLS and passes its bytes on, or doesn't.
type proxy struct {
	to        string
	addr      string
	hosts     string // file in which the agent looks names up
	good, bad tls.Certificate

	mu    sync.Mutex
	mode  string                // guarded by mu
	ln    net.Listener          // guarded by mu; nil while refusing
	conns map[net.Conn]struct{} // guarded by mu
	wg    sync.WaitGroup
}

// certificate makes one for proxyHost that vouches for itself.
func certificate(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: proxyHost}, DNSNames: []string{proxyHost},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// set changes what the proxy does. Connections of before are cut: what hangs for good takes the client's 30 s to
// notice, which a soak has the time for.
func (p *proxy) set(t *testing.T, mode string) {
	t.Helper()
	name := "127.0.0.1 " + proxyHost + "\n"
	if mode == noName {
		name = "\n"
	}
	if err := os.WriteFile(p.hosts, []byte(name), 0o600); err != nil { // in place: it is mounted
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !soak() || mode != forward {
		for c := range p.conns {
			_ = c.Close()
		}
	}
	p.mode = mode
	switch {
	case mode == refuse && p.ln != nil:
		_ = p.ln.Close()
		p.ln = nil
	case mode != refuse && p.ln == nil:
		ln, err := net.Listen("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		p.addr, p.ln = ln.Addr().String(), ln
		p.wg.Go(func() { p.serve(ln) })
	}
}

func (p *proxy) close() {
	p.mu.Lock()
	if p.ln != nil {
		_ = p.ln.Close()
	}
	for c := range p.conns {
		_ = c.Close()
	}
	p.mode = refuse
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) serve(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.pass(c) })
	}
}

// keep notes a connection, so that it can be cut; false: too late.
func (p *proxy) keep(c net.Conn) (mode string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
	return p.mode
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

func (p *proxy) pass(raw net.Conn) {
	defer p.drop(raw)
	mode := p.keep(raw)
	cert := p.good
	if mode == wrongTLS {
		cert = p.bad
	}
	agent := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	if err := agent.Handshake(); err != nil {
		return
	}
	if mode == hang {
		_, _ = io.Copy(io.Discard, agent)
		return
	}
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer p.drop(server)
	p.keep(server)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer server.Close()
		_, _ = io.Copy(server, agent)
	})
	defer raw.Close()
	if mode == trickle {
		b := make([]byte, 1)
		for {
			if _, err := server.Read(b); err != nil {
				return
			}
			if _, err := agent.Write(b); err != nil {
				return
			}
			<-time.After(time.Second)
		}
	}
	_, _ = io.Copy(agent, server)
}

func TestL16EveryKindOfSilence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := &proxy{hosts: filepath.Join(dir, "hosts"), conns: map[net.Conn]struct{}{}, addr: "127.0.0.1:0"}
	var ca []byte
	p.good, ca = certificate(t)
	p.bad, _ = certificate(t)
	caFile := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(caFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	p.set(t, forward)
	t.Cleanup(p.close)
	w := beginWith(t, stack.Config{
		NoAgent: true, ServerArgs: []string{"--lease-ttl", scaled("60s", "600s")},
		Config: logsSmall + fmt.Sprintf("tls: {ca_file: %q}\n", caFile),
		// The agent has a hosts file of its own, and no other way to look a name up.
		AgentVia: []string{"unshare", "--mount", "sh", "-c", fmt.Sprintf("mount --bind '%s' /etc/hosts && exec \"$@\"", p.hosts), "sh"},
	})
	p.to = strings.TrimPrefix(w.URL, "http://")
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Join(t.Context(), "https://"+net.JoinHostPort(proxyHost, port)); err != nil {
		t.Fatal(err)
	}
	pid := w.Agent.PID()
	does := work{Size: 100, Burst: 5, Pause: 10}
	id := w.print(t, adminclient.Submission{MaxAttempts: 1, Grace: new(protocol.Millis(1000))}, &does)
	stored := func() int64 {
		j, err := w.Admin.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if j.Last() == nil {
			return 0
		}
		return j.Last().LogNext
	}
	until(t, "the first lines arrive", func() bool { return stored() > 0 })
	for _, mode := range []string{refuse, hang, trickle, noName, wrongTLS} {
		p.set(t, mode)
		pass(scaled(3*time.Second, time.Minute))
		p.set(t, forward)
		due, began := does.truth(t).Written/int64(does.Size), time.Now()
		until(t, "recovery after: "+mode, func() bool { return stored() >= due })
		t.Logf("%s: all of it arrived %v after the end", mode, time.Since(began).Round(time.Millisecond))
	}
	if err := w.Agent.Signal(syscall.Signal(0)); err != nil || w.Agent.PID() != pid {
		t.Errorf("the agent is not the one of before: %v", err)
	}
	if _, err := w.Admin.Cancel(t.Context(), id, "enough"); err != nil {
		t.Fatal(err)
	}
	j := w.ended(t, id, "cancelled")
	w.cut(t, j, 1, does)
}
