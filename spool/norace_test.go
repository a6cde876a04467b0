//go:build !race

package spool

const raceCost = 1
