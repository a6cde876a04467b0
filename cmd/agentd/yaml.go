package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// fault is one thing that is wrong with the config: where, what, and what is allowed.
type fault struct {
	line int // 0 = not in the file
	path string
	what string
}

// configError is everything that is wrong with a config at once.
type configError struct {
	file   string
	faults []fault
	unread bool // there is nothing to go by
}

func (e *configError) Error() string {
	lines := make([]string, 0, len(e.faults))
	for _, f := range e.faults {
		at := e.file
		if f.line > 0 {
			at = fmt.Sprintf("%s:%d", e.file, f.line)
		}
		if f.path != "" {
			at += ": " + f.path
		}
		lines = append(lines, at+": "+f.what)
	}
	return strings.Join(lines, "\n")
}

// reader walks a YAML document by a description of what may stand there, and notes every fault instead
// of stopping at the first.
type reader struct {
	faults []fault
	lines  map[string]int // where each key stood, for faults that are found later
}

// field takes the value that stands under a key.
type field func(path string, n ast.Node)

func (r *reader) fault(n ast.Node, path, format string, args ...any) {
	line := 0
	if n != nil && n.GetToken() != nil && n.GetToken().Position != nil {
		line = n.GetToken().Position.Line
	}
	r.faults = append(r.faults, fault{line, path, fmt.Sprintf(format, args...)})
}

// document reads one document whose root is a mapping.
func (r *reader) document(text []byte, fields map[string]field) {
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.faults = append(r.faults, syntaxFault(err))
		return
	}
	for i, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case i > 0:
			r.fault(doc.Body, "", "a second document: the config is one")
		default:
			r.object("", doc.Body, fields)
		}
	}
}

// syntaxFault takes the line out of the parser's words.
func syntaxFault(err error) fault {
	text := strings.TrimSpace(err.Error())
	first, _, _ := strings.Cut(text, "\n")
	var line, col int
	if _, scanErr := fmt.Sscanf(first, "[%d:%d]", &line, &col); scanErr == nil {
		if _, rest, ok := strings.Cut(first, "] "); ok {
			first = rest
		}
	}
	return fault{line, "", "not YAML: " + first}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// object reads a mapping in which only the named keys may stand, each once.
func (r *reader) object(path string, n ast.Node, fields map[string]field) {
	seen := map[string]int{}
	for _, kv := range r.pairs(path, n) {
		key, ok := kv.Key.(*ast.StringNode)
		if !ok {
			r.fault(kv.Key, path, "the key %s is not a plain name", kv.Key.String())
			continue
		}
		at := join(path, key.Value)
		if first, twice := seen[key.Value]; twice {
			r.fault(kv.Key, at, "stands here for the second time, first in line %d", first)
			continue
		}
		seen[key.Value] = key.GetToken().Position.Line
		read, known := fields[key.Value]
		if !known {
			r.fault(kv.Key, at, "unknown key%s", suggestion(key.Value, fields))
			continue
		}
		r.lines[at] = key.GetToken().Position.Line
		if _, null := kv.Value.(*ast.NullNode); !null { // an empty value is one that isn't given
			read(at, kv.Value)
		}
	}
}

func (r *reader) pairs(path string, n ast.Node) []*ast.MappingValueNode {
	switch v := n.(type) {
	case *ast.MappingNode:
		return v.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{v}
	}
	r.fault(n, path, "%s where keys with values are wanted", kind(n))
	return nil
}

// suggestion names what is allowed, the likeliest first.
func suggestion(key string, fields map[string]field) string {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := distance(key, a) - distance(key, b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	if distance(key, names[0]) <= 2 {
		return fmt.Sprintf("; did you mean %s?", names[0])
	}
	slices.Sort(names)
	return "; allowed are " + strings.Join(names, ", ")
}

// distance is the number of single-letter edits from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diag, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diag+cost)
		}
	}
	return row[len(b)]
}

// kind names a node for people.
func kind(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.AnchorNode, *ast.AliasNode:
		return "an anchor or alias"
	case *ast.NullNode:
		return "nothing"
	case *ast.BoolNode:
		return "true or false"
	case *ast.IntegerNode, *ast.FloatNode:
		return "a number"
	}
	return "text"
}

// scalar is the text of a single value: quoted or not, a number or a word.
func scalar(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}
