//go:build race

package spool

// raceCost is by how much the race detector makes work and memory larger.
const raceCost = 4
