package shipper

import (
	"fmt"

	"agentd/agent/protocol"
	"agentd/shipper/internal/queue"
)

// QueuedLog is what a queue file holds of one attempt's log.
type QueuedLog struct {
	Ref     protocol.AttemptRef
	Closed  bool
	Next    int64 // the number after the last
	Batches []QueuedBatch
}

// EncodingIdentity is how Decode is told that what it gets is NDJSON already, as a QueuedBatch's text is.
const EncodingIdentity = encIdentity

// QueuedBatch is a stretch of a log as NDJSON. A damaged one has no text.
type QueuedBatch struct {
	First, Count int64
	Text         []byte
	Damaged      bool
}

// InspectQueue reads a queue file without changing it, whether an agent uses it or not, or has
// crashed: sealed batches first, then the records that will be made of what was read and isn't
// sealed. Of a file in use the result is what was whole at that moment.
func InspectQueue(path string) ([]QueuedLog, error) {
	found, err := queue.Inspect(path)
	if err != nil {
		return nil, fmt.Errorf("shipper: %w", err)
	}
	var out []QueuedLog
	for _, in := range found {
		log := QueuedLog{
			Ref:    protocol.AttemptRef{JobID: in.JobID, Attempt: in.Attempt, LeaseToken: in.Token},
			Closed: in.Closed, Next: in.Next,
		}
		for _, b := range in.Batches {
			text, err := []byte(nil), error(nil)
			if !b.Damaged {
				text, err = decode(b.Data, b.Encoding)
			}
			log.Batches = append(log.Batches, QueuedBatch{First: b.First, Count: b.Count, Text: text, Damaged: b.Damaged || err != nil})
		}
		var f framer
		f.load(in.MaxLine, in.Runs, in.Used, in.Parts)
		for more := true; more; {
			more = f.next(frameMax)
			if f.count > 0 {
				log.Batches = append(log.Batches, QueuedBatch{First: log.Next, Count: f.count, Text: append([]byte(nil), f.out...)})
				log.Next += f.count
			}
			f.reset()
		}
		out = append(out, log)
	}
	return out, nil
}
