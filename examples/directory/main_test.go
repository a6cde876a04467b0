package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestServe(t *testing.T) {
	entries, err := load("people.csv")
	if err != nil {
		t.Fatal(err)
	}
	in := `{"id":"q1","type":"directory","connector":"people","remainingMs":5000,"query":{"term":"LOVELACE"}}
{"id":"q2","query":{"term":"example.org","limit":2}}
{"id":"q3","query":{"term":"example.org","limit":2,"after":"2"}}
{"id":"q4","query":{"term":"nobody"}}
{"id":"q5","query":{}}
`
	var out strings.Builder
	if err := serve(strings.NewReader(in), &out, entries); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"q1","page":{"items":[{"department":"Analysis","mail":"ada@example.org","name":"Ada Lovelace"}],"next":""}}
{"id":"q2","page":{"items":[{"department":"Analysis","mail":"ada@example.org","name":"Ada Lovelace"},{"department":"Compilers","mail":"grace@example.org","name":"Grace Hopper"}],"next":"2"}}
{"id":"q3","page":{"items":[{"department":"Theory","mail":"alan@example.org","name":"Alan Turing"},{"department":"Networks","mail":"radia@example.org","name":"Radia Perlman"}],"next":""}}
{"id":"q4","page":{"items":[],"next":""}}
{"id":"q5","code":"invalid_query"}
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestLoadRefusesRowsOfAnotherLength(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.csv")
	if err := os.WriteFile(file, []byte("name,mail\nAda\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(file); err == nil || !strings.Contains(err.Error(), "wrong number of fields") {
		t.Errorf("got %v, want an error about the number of fields", err)
	}
}
