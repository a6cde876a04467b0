// Package protocol is the wire between an agent and a control plane: the types, the error
// codes and what an agent does about each, the record format of logs, and the HTTP client.
// It is a leaf: it imports nothing of this module, so that anyone may build on it.
package protocol
