package network

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/agent"
	"agentd/test/stack"
)

// proxy writes the config of a proxy in dir that listens on from, passes to to, and cuts a request after cut; 0 leaves
// its own defaults. It returns the command line.
type proxy func(dir, from, to string, cut time.Duration) (config string, argv []string)

// nginx answers 504 after proxy_read_timeout, 60 s by default.
func nginx(dir, from, to string, cut time.Duration) (config string, argv []string) {
	return nginxWith(dir, from, to, cut, "")
}

// nginxReset makes nginx send a RST instead: status 444 with reset_timedout_connection.
func nginxReset(dir, from, to string, cut time.Duration) (config string, argv []string) {
	return nginxWith(dir, from, to, cut, "reset_timedout_connection on; error_page 504 @cut; location @cut { return 444; }")
}

func nginxWith(dir, from, to string, cut time.Duration, more string) (config string, argv []string) {
	timeout := ""
	if cut > 0 {
		timeout = fmt.Sprintf("proxy_read_timeout %ds;", int(cut.Seconds()))
	}
	var temp strings.Builder
	for _, of := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temp, "%s_temp_path %s/temp-%s; ", of, dir, of)
	}
	user := "" // the workers of a master that is root are nobody, who may not enter dir
	if os.Geteuid() == 0 {
		user = "user root;"
	}
	return fmt.Sprintf(`%s daemon off; worker_processes 1; pid %s/proxy.pid; error_log stderr;
events { worker_connections 256; }
http { access_log off; %s
  server { listen %s; %s %s
    location / { proxy_pass http://%s; } } }
`, user, dir, temp.String(), from, timeout, more, to), []string{"nginx", "-e", "stderr", "-p", dir, "-c", filepath.Join(dir, "proxy.conf")}
}

// haproxy answers 504 after timeout server, 50 s in Debian's config.
func haproxy(dir, from, to string, cut time.Duration) (config string, argv []string) {
	return haproxyWith(dir, from, to, cut, "mode http")
}

// haproxyTCP passes bytes on without looking into them, and closes connections that are silent: with a FIN, also
// under option nolinger. HAProxy resets nothing that has merely timed out.
func haproxyTCP(dir, from, to string, cut time.Duration) (config string, argv []string) {
	return haproxyWith(dir, from, to, cut, "mode tcp")
}

func haproxyWith(dir, from, to string, cut time.Duration, mode string) (config string, argv []string) {
	if cut == 0 {
		cut = 50 * time.Second // Debian's /etc/haproxy/haproxy.cfg; HAProxy itself has no default
	}
	return fmt.Sprintf(`global
  maxconn 256
defaults
  %s
  timeout connect 5s
  timeout client %[2]ds
  timeout server %[2]ds
frontend in
  bind %s
  default_backend out
backend out
  server plane %s
`, mode, int(cut.Seconds()), from, to), []string{"haproxy", "-db", "-f", filepath.Join(dir, "proxy.conf")}
}

// behind begins a world whose agent reaches the control plane through p only.
func behind(t *testing.T, p proxy, cut time.Duration) *world {
	t.Helper()
	_, argv := p("", "", "", 0)
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Skipf("%s is missing: `make unit` installs it (Debian packages nginx-light, haproxy)", argv[0])
	}
	w := begin(t, stack.Config{NoAgent: true})
	from, err := stack.FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	text, argv := p(w.dir, from, strings.TrimPrefix(w.URL, "http://"), cut)
	if err := os.WriteFile(filepath.Join(w.dir, "proxy.conf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	running, err := stack.StartProcess(argv[0], filepath.Join(w.dir, "proxy.log"), nil, argv...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The agent first: its last words go through the proxy.
		if w.Agent != nil {
			if err := w.Agent.Stop(patience); err != nil {
				t.Error(err)
			}
			w.Agent = nil
		}
		_ = running.Stop(patience) // HAProxy exits with 143 on SIGTERM
	})
	url := "http://" + from
	await(t, argv[0]+" passes requests on", func() (bool, error) { return reachable(t.Context(), url) }, func(ok bool) bool { return ok })
	if err := w.Join(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	return w
}

const (
	learned = "polls were cut on the way"
	failed  = "poll failed"
)

// J9: a proxy cuts every request after a while, with a 504, a RST or a FIN. The agent learns a shorter wait and says so
// once, and no job is lost or run twice, also those that meet a cut.
func TestProxyThatCutsRequests(t *testing.T) {
	t.Parallel()
	cuts := []time.Duration{5 * time.Second} // longer than the 3 s of a held heartbeat, as every proxy's default is
	if soak() {
		cuts = append(cuts, 20*time.Second)
	}
	for name, p := range cutting {
		for _, cut := range cuts {
			t.Run(fmt.Sprintf("%s after %v", name, cut), func(t *testing.T) {
				t.Parallel()
				proxyThatCuts(t, p.proxy, cut, p.seen)
			})
		}
	}
}

// cutting are the proxies and the ways in which they cut; seen is what of it reaches the agent's log.
var cutting = map[string]struct {
	proxy proxy
	seen  string
}{
	"nginx 504":   {nginx, "504"},
	"nginx RST":   {nginxReset, "connection reset by peer"},
	"HAProxy 504": {haproxy, "504"},
	"HAProxy FIN": {haproxyTCP, "EOF"},
}

// J9, un-scaled: cuts at the moment in which a poll of 30 s is answered, and later. Whichever is first, no job is lost or run
// twice, and where nothing is cut nothing is learned.
func TestProxyThatCutsNoSoonerThanPollsEnd(t *testing.T) {
	t.Parallel()
	if !soak() {
		t.Skip("waits for many polls of 30 s: AGENTD_SOAK=1")
	}
	for name, p := range cutting {
		for _, cut := range []time.Duration{30 * time.Second, 55 * time.Second} {
			t.Run(fmt.Sprintf("%s after %v", name, cut), func(t *testing.T) {
				t.Parallel()
				w := behind(t, p.proxy, cut)
				for round := range 4 {
					st := w.status(t, "holds a poll", func(s agent.Status) bool { return s.Polls.Wait > 20*time.Second && s.Polls.Waiting == "" })
					after(t, st.Polls.Wait-time.Since(st.Polls.Answered)-50*time.Millisecond)
					ran := filepath.Join(w.dir, fmt.Sprint("ran-", round))
					w.wantOnce(t, w.submit(t, once, "echo x >> "+ran+"; "+count(10, "0.1")), 10)
					if got := read(ran); got != "x\n" {
						t.Errorf("round %d: the job ran %d times, want once", round, len(got)/2)
					}
				}
				// One that outlasts the proxy's timeout.
				w.wantOnce(t, w.submit(t, once, count(120, "0.5")), 120)
				st := w.status(t, "is answered", func(s agent.Status) bool { return s.Healthy && s.Polls.Failing == 0 })
				if cut > 30*time.Second && (st.Polls.Learned || strings.Contains(w.agentLog(), failed)) {
					t.Errorf("polls failed, or a shorter wait was learned: %+v", st.Polls)
				}
			})
		}
	}
}

func proxyThatCuts(t *testing.T, p proxy, cut time.Duration, seen string) {
	w := behind(t, p, cut)
	st := w.status(t, "holds a poll", func(s agent.Status) bool { return s.Polls.Wait > cut })
	// A job that is offered in the moment of the cut: whichever is first, it runs once.
	after(t, cut-time.Since(st.Polls.Answered)-50*time.Millisecond)
	ran := filepath.Join(w.dir, "ran")
	racing := w.submit(t, once, "echo x >> "+ran+"; "+count(10, "0.1"))

	st = w.status(t, "learns", func(s agent.Status) bool { return s.Polls.Learned })
	// A fifth less than the age of the cuts, which were seen late if this machine is busy.
	if want := cut * 4 / 5; st.Polls.Wait < want-time.Second || st.Polls.Wait >= cut {
		t.Errorf("learned to wait %v at most where polls are cut at %v, want about %v", st.Polls.Wait, cut, want)
	}
	answered := st.Polls.Count
	st = w.status(t, "is answered", func(s agent.Status) bool { return s.Polls.Count >= answered+2 })
	if st.Polls.Failing != 0 || !st.Healthy {
		t.Errorf("with the shorter wait polls fail: %+v", st.Polls)
	}
	w.wantOnce(t, racing, 10)
	// One that outlasts the proxy's timeout: its heartbeats pass, since none is held for as long.
	w.wantOnce(t, w.submit(t, once, "echo x >> "+ran+"; "+count(14, "0.5")), 14)
	if got, want := read(ran), "x\nx\n"; got != want {
		t.Errorf("the two jobs ran %d times, want each once", len(got)/2)
	}
	log := w.agentLog()
	if !strings.Contains(log, seen) {
		t.Errorf("the agent's log has no %q: it was cut in another way", seen)
	}
	if n := strings.Count(log, learned); n != 1 {
		t.Errorf("the shorter wait was logged %d times, want once", n)
	}
	if n := strings.Count(log, failed); n < 1 || n > 3 {
		t.Errorf("failing polls were logged %d times, want once for each row of failures (with the racing job in between)", n)
	}
	if strings.Contains(log, "heartbeat was missed") {
		t.Error("heartbeats were missed, want none: the proxy's timeout is longer than they are held")
	}
}

// J9 with the proxies' own defaults (60 s of nginx, 50 s of Debian's HAProxy): polls of 30 s pass, nothing is learned.
func TestProxyWithItsDefaults(t *testing.T) {
	t.Parallel()
	polls := int64(1) // answered ones; each is held for 30 s when there is no job
	if soak() {
		polls = 4
	}
	for name, p := range map[string]proxy{"nginx": nginx, "HAProxy": haproxy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := behind(t, p, 0)
			w.wantOnce(t, w.submit(t, once, count(20, "0.2")), 20)
			before := w.status(t, "polls on", func(s agent.Status) bool { return s.Polls.Wait == 30*time.Second })
			st := w.status(t, "is answered", func(s agent.Status) bool { return s.Polls.Count >= before.Polls.Count+polls })
			if held := st.Polls.Answered.Sub(before.Polls.Answered); held < 20*time.Second {
				t.Errorf("polls were answered after %v, want held ones", held)
			}
			if st.Polls.Learned || st.Polls.Failing != 0 || strings.Contains(w.agentLog(), failed) {
				t.Errorf("polls failed or a shorter wait was learned: %+v", st.Polls)
			}
		})
	}
}
