// Package netns makes a link between two network namespaces: one end is the caller's, the other a namespace
// of its own into which a process can be put. The link can be made slow, and it can swallow packets without a word, which
// no proxy on loopback can: TCP goes on acknowledging there. It needs root, and ip, tc, iptables and nsenter.
package netns
