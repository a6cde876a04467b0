// The directory connector answers queries of one directory from a CSV file. It shows what a long-lived connector of
// agentd is: a process that reads a query a line and writes an answer a line. README.md says how to set it up.
package main

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxQuery bounds a line of input: the control plane takes 1 MiB at most.
const maxQuery = 1 << 20

// pageSize is how many entries a page has at most when the query names no limit.
const pageSize = 20

// query is a line of input, as far as this connector needs it.
type query struct {
	ID    string `json:"id"`
	Query struct {
		Term  string `json:"term"`
		Limit int    `json:"limit"`
		After string `json:"after"` // the last page's next
	} `json:"query"`
}

// answer is a line of output: a page, or an error's code.
type answer struct {
	ID   string `json:"id"`
	Page *page  `json:"page,omitempty"`
	Code string `json:"code,omitempty"`
}

type page struct {
	Items []map[string]string `json:"items"`
	Next  string              `json:"next"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: directory FILE.csv")
		os.Exit(2)
	}
	entries, err := load(os.Args[1])
	if err == nil {
		err = serve(os.Stdin, os.Stdout, entries)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "directory:", err)
		os.Exit(1)
	}
}

// load reads the file; its first row names the columns.
func load(path string) ([]map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s: no row with the columns' names", path)
	}
	entries := make([]map[string]string, 0, len(rows)-1)
	for _, row := range rows[1:] {
		entry := map[string]string{}
		for i, name := range rows[0] {
			entry[name] = row[i] // as many as the first row has: the reader saw to it
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// serve answers until the input ends, one query after the other.
func serve(in io.Reader, out io.Writer, entries []map[string]string) error {
	lines := bufio.NewReaderSize(in, maxQuery)
	enc := json.NewEncoder(out) // a line each, written at once
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var q query
		if err := json.Unmarshal(line, &q); err != nil {
			return errors.New("a query that can't be read") // without an id there is nobody to answer
		}
		clear(line) // what people search for is nobody's business, here neither
		if err := enc.Encode(find(q, entries)); err != nil {
			return err
		}
	}
}

// find looks for the term in every column, without regard to case.
func find(q query, entries []map[string]string) answer {
	term := strings.ToLower(strings.TrimSpace(q.Query.Term))
	from, err := strconv.Atoi("0" + q.Query.After)
	if term == "" || err != nil || q.Query.Limit < 0 {
		return answer{ID: q.ID, Code: "invalid_query"}
	}
	limit := q.Query.Limit
	if limit == 0 || limit > pageSize {
		limit = pageSize
	}
	p := page{Items: []map[string]string{}}
	for i := from; i < len(entries); i++ {
		if !matches(entries[i], term) {
			continue
		}
		if len(p.Items) == limit {
			p.Next = strconv.Itoa(i)
			break
		}
		p.Items = append(p.Items, entries[i])
	}
	return answer{ID: q.ID, Page: &p}
}

func matches(entry map[string]string, term string) bool {
	values := make([]string, 0, len(entry))
	for _, v := range entry {
		values = append(values, strings.ToLower(v))
	}
	return slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, term) })
}
