// Package shipper takes what jobs print and brings it to the control plane: every line that was
// read from a job's pipe arrives exactly once and in order, or a record in the log says what is
// missing and why. The bytes wait in crash-proof memory first, and in the spool when the control
// plane is behind or away.
package shipper
