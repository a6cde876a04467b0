// Package trials puts the real agent and the real control plane through the faults that people report from
// the field: lost replies, outages, kill -9, stops at the wrong moment. Each test bears the name of its
// trial, and docs/durability.md lists them.
//
// The jobs print lines that can be told from their number alone, so that what the control plane holds is
// compared byte by byte with what was printed, however much that was. AGENTD_SOAK=1 brings the full sizes.
package trials
