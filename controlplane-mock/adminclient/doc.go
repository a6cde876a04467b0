// Package adminclient is a typed client of the reference control plane's admin side: jobs,
// their logs, agents, enrolment tokens, queries, faults. It promises that a followed log comes
// whole, in order and without a repeat, however often the connection or the server goes away.
//
// Why that holds: records of an attempt have dense numbers, and each record says its own. The
// client asks from the number after the last record it gave out, so a lost connection costs
// nothing and repeats nothing. A stream that ends proves nothing (a server that shuts down ends
// it properly, too): the log is complete only when the job itself says so, and until then the
// client asks again.
package adminclient
