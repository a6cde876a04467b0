package main

import "strings"

// script turns arguments into a shell script that runs exactly them.
func script(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = quote(a)
	}
	return strings.Join(words, " ")
}

// plain are the characters that mean themselves to every shell, wherever they stand.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:,@%+-"

// reserved are words of plain characters that a shell takes for its own where a command is expected.
var reserved = map[string]bool{
	"if": true, "then": true, "else": true, "elif": true, "fi": true, "do": true, "done": true, "case": true, "esac": true,
	"while": true, "until": true, "for": true, "in": true, "function": true, "select": true, "time": true, "coproc": true,
}

// quote returns s as one word of POSIX shell.
func quote(s string) string {
	if s != "" && !reserved[s] && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
