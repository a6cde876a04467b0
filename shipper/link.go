package shipper

import (
	"cmp"
	"time"

	"agentd/agent/protocol"
)

const (
	// bodyMax is the most that one body may have, as sent: a second's worth on a fast disk, and few
	// enough requests that their cost, a sync of the server's disk above all, is spread over many lines.
	bodyMax = 4 << 20
	// memoryShare: what is in memory is pinned there while it is under way, so that such a body takes at most an eighth.
	memoryShare = 8
	// decodedMax stays clear of the protocol's 32 MiB.
	decodedMax = 24 << 20
	// limitMin is what no refusal makes us go below: a few records always fit.
	limitMin = 1 << 10
	// limitAge is how long a learned limit holds before twice as much is tried: proxies change.
	limitAge = 10 * time.Minute
	// slowRate is where a link counts as the bottleneck (80 Mbit/s): below it zstd's CPU is cheaper than the bytes it saves.
	slowRate = 10 << 20
	// crawlRate is where more requests at a time only make each other wait (8 Mbit/s).
	crawlRate = 1 << 20
	// rateSample is the least body that says something about the link's rate.
	rateSample = 32 << 10
	// bodyTime is how long a body may take on a slow link, so that it doesn't block what else goes over it.
	bodyTime = 2 * time.Second
)

// link is what is known of the way to the server, for all lanes. Guarded by Shipper.mu.
type link struct {
	maxBody     int64
	offered     map[uint8]bool
	refused     map[uint8]bool // said 415 to
	learned     int64          // a body above it was refused as too large; 0 = none was
	learnedAt   time.Time
	rate        float64 // bytes a second, a moving average; 0 = unknown
	pausedUntil time.Time
}

func (k *link) init() {
	k.maxBody = 8 << 20 // the protocol's default
	k.offered = map[uint8]bool{encZstd: true, encGzip: true, encIdentity: true}
	k.refused = map[uint8]bool{}
}

// SetServer takes over what a link said about log bodies. What was learned before is forgotten, and
// lanes that waited because of the identity try again.
func (s *Shipper) SetServer(maxLogBody int64, encodings []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link.init()
	if maxLogBody > 0 {
		s.link.maxBody = maxLogBody
	}
	for _, name := range encodings {
		if id, ok := encodingOf(name); ok {
			s.link.offered[id] = true
		}
	}
	for _, l := range s.order {
		switch l.action {
		case protocol.Relink, protocol.StopRevoked, protocol.StopConflict, protocol.Reencode:
			l.wakeAt = time.Time{}
		}
	}
	knock(s.shipWake)
}

func (k *link) usable(encoding uint8) bool { return k.offered[encoding] && !k.refused[encoding] }

// other is the best encoding that may be used; identity when all have been refused.
func (k *link) other() uint8 {
	for _, e := range [...]uint8{encZstd, encGzip, encSnappy} {
		if k.usable(e) {
			return e
		}
	}
	return encIdentity
}

// limit is the most that a body may have now.
func (k *link) limit(now time.Time) int64 {
	if k.learned > 0 && now.Sub(k.learnedAt) > limitAge {
		k.learned, k.learnedAt = 2*k.learned, now
		if k.learned >= k.maxBody {
			k.learned = 0
		}
	}
	n := min(bodyMax, k.maxBody, cmp.Or(k.learned, bodyMax))
	if k.rate > 0 {
		n = min(n, max(int64(k.rate*bodyTime.Seconds()), 64<<10))
	}
	return n
}

// tooLarge remembers that size bytes were refused. True = the limit went down by it.
func (k *link) tooLarge(size int64, now time.Time) bool {
	n := max(size/2, limitMin)
	if k.learned > 0 && n >= k.learned || n >= size {
		return false // the same body would go again
	}
	k.learned, k.learnedAt = n, now
	return true
}

// took notes how long a body needed.
func (k *link) took(size int64, d time.Duration) {
	if size < rateSample {
		return
	}
	rate := float64(size) / max(d, time.Millisecond).Seconds()
	if k.rate == 0 {
		k.rate = rate
	}
	k.rate += (rate - k.rate) / 8
}

func (k *link) slow() bool { return k.rate > 0 && k.rate < crawlRate }

// sealEncoding is what a new batch of l is compressed with.
func (s *Shipper) sealEncoding(log *Log) uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.cfg.Compression {
	case "none":
		return encIdentity
	case "gzip":
		return encGzip
	case "zstd":
		return encZstd
	case "snappy":
		if !s.link.usable(encSnappy) {
			return s.link.other()
		}
		return encSnappy
	}
	l := s.lanes[keyOf(log.ref)]
	behind := l != nil && (l.replaying() || l.orphan)
	bottleneck := s.link.rate > 0 && s.link.rate < slowRate && s.queue.Fill() > 0.1
	if s.cfg.Durability == DurabilityStrict || behind || bottleneck || !s.link.usable(encSnappy) {
		return s.link.other()
	}
	return encSnappy
}

// logClosed, batchSealed and numbersDropped are what sealing tells shipping.
func (s *Shipper) logClosed(log *Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lanes[keyOf(log.ref)]; l != nil {
		s.wake(l)
	}
}

func (s *Shipper) batchSealed(log *Log, records, decoded int64) {
	s.counters.accepted.Add(records)
	s.counters.acceptedBytes.Add(decoded)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[keyOf(log.ref)]
	if l == nil {
		return
	}
	s.wake(l)
	if l.orphan && s.cfg.Spool == nil {
		s.dropOrphan(l)
	}
	if s.cfg.Spool != nil {
		if s.spillIdle.CompareAndSwap(true, false) || l.orphan || s.cfg.Durability == DurabilityStrict || s.queue.Fill() > spillFill {
			knock(s.spilWake)
		}
	}
}

func (s *Shipper) numbersDropped(log *Log, first, count int64) {
	s.counters.accepted.Add(count)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lanes[keyOf(log.ref)]; l != nil {
		s.addGap(l, span{first: first, next: first + count, reason: protocol.GapSpoolFull})
		s.wake(l)
	}
}
