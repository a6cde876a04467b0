package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestBillNamesWhatWasLinkedIn(t *testing.T) {
	got := bill("tool", "1.2.3", &debug.BuildInfo{GoVersion: "go1.26.0", Deps: []*debug.Module{
		{Path: "example.org/a", Version: "v1.0.0"},
		{Path: "example.org/b", Version: "v2.0.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v2.0.1"}},
	}})
	want := bom{"CycloneDX", "1.5", 1, metadata{component{"application", "tool", "1.2.3", "pkg:generic/tool@1.2.3"}}, []component{
		{"library", "std", "go1.26.0", "pkg:golang/std@go1.26.0"},
		{"library", "example.org/a", "v1.0.0", "pkg:golang/example.org/a@v1.0.0"},
		{"library", "example.org/fork", "v2.0.1", "pkg:golang/example.org/fork@v2.0.1"},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestBillOfABinary(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := sbom(&text, "1.2.3", []string{exe}); err != nil {
		t.Fatal(err)
	}
	var got bom
	if err := json.Unmarshal(text.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Component.Name != filepath.Base(exe) || got.Components[0].Version != runtime.Version() {
		t.Errorf("got %+v, want this binary, built by %s", got, runtime.Version())
	}
}

func TestWhatIsNoGoBinaryIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte("no binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{path}, {}, {path, path}} {
		if err := sbom(&bytes.Buffer{}, "1", args); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}
