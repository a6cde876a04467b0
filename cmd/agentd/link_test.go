package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// keep is keepServer and its change in one.
func keep(path, server string) (named string, err error) {
	named, change, err := keepServer(path, server)
	if err != nil {
		return "", err
	}
	defer change.discard()
	return named, change.commit()
}

func TestLinkNamesTheServerInTheConfig(t *testing.T) {
	const url, plain = "https://control.example.com", "http://control.example.com"
	for name, c := range map[string]struct{ old, want string }{
		"packaged":   {"# a comment\n\n#server: https://x\n\nmax_jobs: 3 # many\n", "# a comment\n\nserver: \"" + url + "\"\n\nmax_jobs: 3 # many\n"},
		"no comment": {"max_jobs: 3\n", "server: \"" + url + "\"\nmax_jobs: 3\n"},
		"empty":      {"", "server: \"" + url + "\"\n"},
		"named":      {"server: " + url + " # mine\n", "server: " + url + " # mine\n"},

		// With --insecure, else the agent would refuse what it was linked with.
		"insecure, packaged":    {"# a comment\n#server: https://x\nmax_jobs: 3\n", "# a comment\nserver: \"" + plain + "\"\ninsecure: true\nmax_jobs: 3\n"},
		"insecure, empty":       {"", "server: \"" + plain + "\"\ninsecure: true\n"},
		"insecure, named":       {"server: " + plain + " # mine\n", "insecure: true\nserver: " + plain + " # mine\n"},
		"insecure, said before": {"insecure: true\n", "server: \"" + plain + "\"\ninsecure: true\n"},
		"insecure, both said":   {"server: " + plain + "\ninsecure: true\n", "server: " + plain + "\ninsecure: true\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agentd.yaml")
			if err := os.WriteFile(path, []byte(c.old), 0o640); err != nil {
				t.Fatal(err)
			}
			url := url
			if strings.HasPrefix(name, "insecure") {
				url = plain
			}
			named, err := keep(path, url)
			if err != nil || named != url {
				t.Fatalf("got %q, %v", named, err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if string(text) != c.want {
				t.Errorf("got\n%s\nwant\n%s", text, c.want)
			}
			if info, _ := os.Stat(path); info.Mode().Perm() != 0o640 {
				t.Errorf("mode %v, want the file's own", info.Mode())
			}
		})
	}
}

func TestLinkDoesNotBreakAConfigItCannotAddTo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agentd.yaml")
	for _, old := range []string{"{max_jobs: 3}\n", "max_jobs: 3\ninsecure: false\n"} {
		if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := keep(path, "http://control.example.com")
		if want := "set `server: \"http://control.example.com\"` and `insecure: true`"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want what to do: %s", err, want)
		}
		if text, _ := os.ReadFile(path); string(text) != old {
			t.Errorf("the file is %q now", text)
		}
	}
}

// What `agentd link --insecure` was allowed, `agentd run` is, too. The flag needs no value.
func TestInsecureIsKept(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\n")
	text, err := os.ReadFile(h.config)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n") // the first line names the server
	h.write(t, rest)
	t.Setenv("HTTP_PROXY", h.url) // the control plane serves all that it is asked for by this name
	const url = "http://control.invalid"
	_, stderr := h.does(t, exitConfig, h.token(t), "link", "--server", url, "--token-file", "-")
	mustSay(t, stderr, "unencrypted", "insecure: true")
	id, _ := h.does(t, 0, h.token(t), "link", "--server", url, "--insecure", "--token-file", "-")
	start(t, "", "run", "--config", h.config)
	if st := h.status(t, working); st.AgentID != strings.TrimSpace(id) || st.Server != url {
		t.Errorf("agent %s of %s runs, want %s of %s", st.AgentID, st.Server, id, url)
	}
}

func TestLinkNeverOverwritesAnotherServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agentd.yaml")
	if err := os.WriteFile(path, []byte("server: https://other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if named, err := keep(path, "https://control.example.com"); err != nil || named != "https://other" {
		t.Errorf("got %q, %v, want the server that the file names", named, err)
	}
}

// check says which jobs could read what is the agent's own.
func TestCheckNamesJobsWithoutAUserOfTheirOwn(t *testing.T) {
	h := newHost(t, "handlers: [{type: walled, user: nobody, command: [a]}, {type: shell}, {type: open, command: [a]}]\n")
	_, stderr := h.does(t, 0, "", "check")
	mustSay(t, stderr, "jobs of type shell, open run as the agent's own user", "identity")
	h.write(t, "server: "+h.url+"\nhandlers: [{type: walled, user: nobody, command: [a]}]\n")
	if _, stderr = h.does(t, 0, "", "check"); stderr != "" {
		t.Errorf("it says %q", stderr)
	}
}

// Root links as the owner of the state directory.
func TestRootLinksAsTheOwner(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\n")
	if err := os.Mkdir(h.state, 0o750); err != nil {
		t.Fatal(err)
	}
	uid := os.Geteuid()
	if uid == 0 { // others can give nothing away; for them it must just work
		uid = 65534
		if err := os.Chown(h.state, uid, uid); err != nil {
			t.Fatal(err)
		}
		for dir := filepath.Dir(h.state); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	secret := filepath.Join(t.TempDir(), "token") // root's alone
	if err := os.WriteFile(secret, []byte(h.token(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	h.does(t, 0, "", "link", "--token-file", secret)
	names, err := os.ReadDir(h.state)
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, n := range names {
		info, err := n.Info()
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != uid {
			t.Errorf("%s belongs to %d, want %d", n.Name(), st.Uid, uid)
		}
	}
}
