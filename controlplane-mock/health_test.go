package controlplane

import (
	"errors"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A heartbeat may be served from memory while no job can be stored: that is no recovery.
func TestStoreHealthIsShownByTheRouteThatFailed(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	log := zap.New(core)
	var h storeHealth
	check := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, e := range logs.TakeAll() {
			got = append(got, e.Message)
		}
		if len(got) != len(want) || len(got) == 1 && got[0] != want[0] {
			t.Errorf("%s: logged %q, want %q", when, got, want)
		}
	}
	away := errors.New("away")
	for range 2 {
		h.ok(log, "poll")
		check("all is well")
		h.failed(log, "poll", away)
		check("the first failure", "store failed")
		h.failed(log, "poll", away)
		h.failed(log, "submit", away)
		check("more failures")
		h.ok(log, "heartbeat")
		check("a route that never failed")
		h.ok(log, "submit")
		check("a route that failed", "store recovered")
		h.ok(log, "poll")
		check("the other one")
	}
}
