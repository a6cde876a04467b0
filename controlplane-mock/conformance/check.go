package conformance

import "slices"

// Check is one row of the table.
type Check struct {
	// Name is the section's short name and what is checked: "jobs/poll-wakes". It never changes, so that reports can be compared.
	Name string
	// Section is the heading of docs/protocol.md that Says stands under.
	Section string
	// Says are the sentences that the check holds the server to, or the parts of them, as they stand there.
	Says []string

	run func(*probe)
	// What a target must offer for it.
	needs need
}

// need is what not every target offers.
type need uint8

const (
	minute   need = 1 << iota // patience: it takes about a minute
	faulty                    // fault injection; it runs alone
	restart                   // a server that can be restarted; it runs alone
	shutdown                  // a server that can be shut down; it runs alone
	peers                     // several instances
	last                      // everything that the other checks have seen
	chance                    // nothing, but a failure is one, though it may not happen again
)

func (n need) has(m need) bool { return n&m != 0 }

// alone says that a check can't run beside others.
func (n need) alone() bool { return n.has(faulty | restart | shutdown | last) }

// missing says what the target lacks; "" if nothing.
func (n need) missing(t Target) string {
	switch {
	case n.has(minute) && t.Quick:
		return "takes a minute, and the quick run was asked for"
	case n.has(faulty) && !t.Faults:
		return "needs a server with fault injection"
	case n.has(restart) && t.Restart == nil:
		return "needs a server that may be restarted"
	case n.has(shutdown) && t.Shutdown == nil:
		return "needs a server that may be shut down"
	case n.has(peers) && len(t.Peers) == 0:
		return "needs a second instance"
	}
	return ""
}

// Checks is the table, in the order of the document.
func Checks() []Check {
	all := slices.Concat(groundChecks, limitChecks, errorChecks, linkChecks, cloneChecks, revocationChecks, pollChecks, offerChecks,
		heartbeatChecks, completionChecks, reaperChecks, cancelChecks, fencingChecks, appendChecks, recordChecks, lateChecks,
		queryChecks, answerChecks, adminChecks, readChecks, restartChecks, faultChecks, outageChecks)
	seen := map[string]bool{}
	for _, c := range all {
		if seen[c.Name] {
			panic("BUG: conformance: two checks are named " + c.Name)
		}
		seen[c.Name] = true
	}
	return all
}
