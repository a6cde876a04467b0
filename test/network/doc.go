// Package network is the slow suite of the network's faults: the real binaries behind real proxies, over links that
// are slow or swallow packets, and with control planes that come and go (J1, J2, J3, J6, J8, J9 and J11 of the field trials).
// What the packages test in simulated time is tried here once more with nothing simulated.
package network
