package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestLinkNamesTheServerInTheConfig(t *testing.T) {
	const url = "https://control.example.com"
	for name, c := range map[string]struct{ old, want string }{
		"packaged":   {"# a comment\n\n#server: https://x\n\nmax_jobs: 3 # many\n", "# a comment\n\nserver: \"" + url + "\"\n\nmax_jobs: 3 # many\n"},
		"no comment": {"max_jobs: 3\n", "server: \"" + url + "\"\nmax_jobs: 3\n"},
		"empty":      {"", "server: \"" + url + "\"\n"},
		"named":      {"server: " + url + " # mine\n", "server: " + url + " # mine\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agentd.yaml")
			if err := os.WriteFile(path, []byte(c.old), 0o640); err != nil {
				t.Fatal(err)
			}
			named, err := keepServer(path, url)
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
	const old = "{max_jobs: 3}\n"
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := keepServer(path, "https://control.example.com")
	if err == nil || !strings.Contains(err.Error(), "add the line") {
		t.Errorf("got %v, want what to do", err)
	}
	if text, _ := os.ReadFile(path); string(text) != old {
		t.Errorf("the file is %q now", text)
	}
}

func TestLinkNeverOverwritesAnotherServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agentd.yaml")
	if err := os.WriteFile(path, []byte("server: https://other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if named, err := keepServer(path, "https://control.example.com"); err != nil || named != "https://other" {
		t.Errorf("got %q, %v, want the server that the file names", named, err)
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
