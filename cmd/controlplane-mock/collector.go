package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// By default the collector lets the heap double before it runs, which for ten thousand idle agents is 20 KB each that nobody
// uses. So the server has it run as often as costs little, which is often when little happens, and leaves it the default when it is busy.
const (
	leastPercent  = 7               // ten thousand idle agents allocate that much in about six seconds
	leastHeadroom = 8 << 20         // bytes: less of a small heap isn't worth collecting for
	mostShare     = 0.05            // of the processors' time
	lookEvery     = 2 * time.Second // a burst after a quiet time has the tight setting for no longer
	quietLooks    = 10              // at the least percentage, before what a busy time took is given back
)

// tuneCollector keeps GOGC at what collectorPercent says until ctx ends.
func tuneCollector(ctx context.Context) {
	percent := 100
	defer debug.SetGCPercent(debug.SetGCPercent(percent))
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"},
		{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for spent, quiet := 0.0, 0; ; {
		metrics.Read(s)
		now := s[2].Value.Float64() - s[3].Value.Float64() // what would have idled is not spent
		share := (now - spent) / lookEvery.Seconds() / float64(runtime.GOMAXPROCS(0))
		spent = now
		next := collectorPercent(percent, s[0].Value.Uint64()+s[1].Value.Uint64(), share)
		if quiet++; next > percent {
			quiet = 0
		}
		if next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
		if quiet == quietLooks {
			debug.FreeOSMemory() // else the runtime keeps a tenth more than it needs, and what is left of the busy time's peak
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// collectorPercent is the GOGC at which collections take mostShare of the processors' time, within the least and the default. now is
// the one at which they took share: what one collection costs doesn't depend on it, and half of it makes them twice as
// frequent. marked is what it is a percentage of: the live heap and stacks, in bytes.
func collectorPercent(now int, marked uint64, share float64) int {
	least := max(leastPercent, leastHeadroom*100/max(marked, 1))
	return int(min(100, max(float64(least), float64(now)*share/mostShare)))
}
