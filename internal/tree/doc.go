// Package tree has no code: its tests hold the source tree to the rules that keep it readable,
// and each failure says which rule, and why it is one.
package tree
