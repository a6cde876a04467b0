package faults_test

import (
	"net/http"
	"net/url"
	"testing"

	"agentd/controlplane-mock/faults"
)

func TestPathGlobs(t *testing.T) {
	for _, tc := range []struct {
		glob, path string
		want       bool
	}{
		{"", "/anything", true},
		{"/agent/v1/jobs/*/attempts/*/logs", "/agent/v1/jobs/job_1/attempts/12/logs", true},
		{"/agent/v1/jobs/*/attempts/*/logs", "/agent/v1/jobs/job_1/attempts/12/logs/next", false},
		{"/agent/v1/jobs/*/attempts/*/logs", "/agent/v1/jobs/a/b/attempts/12/logs", false},
		{"/agent/v1/jobs/*", "/agent/v1/jobs/next", true},
		{"/agent/v1/**", "/agent/v1/jobs/job_1/heartbeat", true},
		{"/agent/v1/**", "/agent/v2/link", false},
		{"/**/heartbeat", "/agent/v1/jobs/job_1/heartbeat", true},
		{"/**/heartbeat", "/agent/v1/jobs/job_1/complete", false},
		{"/agent/v1/jobs/job_*/complete", "/agent/v1/jobs/job_7/complete", true},
		{"/agent/v1/jobs/job_*/complete", "/agent/v1/jobs/x/complete", false},
		{"/a/b", "/a", false},
	} {
		p, err := faults.Path(tc.glob)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequest(http.MethodGet, "http://x.test"+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(r); got != tc.want {
			t.Errorf("%q on %q: got %v, want %v", tc.glob, tc.path, got, tc.want)
		}
	}
}

func TestPredicatesPrintThemselves(t *testing.T) {
	logs, err := faults.Path("/logs")
	if err != nil {
		t.Fatal(err)
	}
	p := faults.And(faults.Or(faults.Method("PUT"), logs), faults.Not(faults.Method("GET")),
		faults.Chance(0.05, func() float64 { return 0 }), faults.First(3))
	r, err := http.NewRequest(http.MethodPut, "http://x.test/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if got, want := p.Match(r), i < 3; got != want {
			t.Errorf("request %d: got %v, want %v", i, got, want)
		}
	}
	want := "(method PUT or path /logs) and not (method GET) and probability 0.05 and the first 3 (3 so far)"
	if got := p.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := faults.And().String(), "any request"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzPath(f *testing.F) {
	f.Add("/agent/v1/jobs/*/attempts/*/logs", "/agent/v1/jobs/job_1/attempts/12/logs")
	f.Add("/**/**/a", "/x/y/a")
	f.Add("/a[", "/a")
	f.Fuzz(func(t *testing.T, glob, path string) {
		p, err := faults.Path(glob)
		if err != nil {
			return
		}
		r := &http.Request{URL: &url.URL{Path: path}}
		p.Match(r)
		same, err := faults.Path("/**")
		if err != nil {
			t.Fatal(err)
		}
		if len(path) > 0 && path[0] == '/' && !same.Match(r) {
			t.Errorf("/** doesn't match %q", path)
		}
	})
}
