package redact

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxFile bounds a file of secrets: MaxSecrets of the longest kind would not fit into any job's filter anyway.
const maxFile = 1 << 20

// ReadFile reads secrets from a file: one a line, but a PEM block (-----BEGIN … -----END) is one. Empty lines don't count.
// The file must be a regular one that others can't read: its group may. No error quotes what it holds.
func ReadFile(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	const toOthers = 0o027 // others read, write, execute; the group writes
	if info.Mode()&toOthers != 0 {
		return nil, fmt.Errorf("%s has mode %04o: others may read or change it; chmod 0600 (or 0640)", path, info.Mode().Perm())
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	secrets, err := parse(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return secrets, nil
}

func parse(r io.Reader) (secrets []string, err error) {
	in := bufio.NewScanner(r) // not job output: a line has a bound
	in.Buffer(nil, MaxSecret+2)
	var block strings.Builder
	line := 0
	for in.Scan() {
		line++
		text := strings.TrimSuffix(in.Text(), "\r")
		begin, end := strings.HasPrefix(text, "-----BEGIN "), strings.HasPrefix(text, "-----END ")
		switch {
		case begin || block.Len() > 0:
			block.WriteString(text + "\n")
			if !end {
				continue
			}
			text = strings.TrimSuffix(block.String(), "\n")
			block.Reset()
		case text == "":
			continue
		}
		if _, err := NewSet(text); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		secrets = append(secrets, text)
	}
	switch {
	case in.Err() != nil:
		return nil, fmt.Errorf("line %d: %w", line+1, in.Err())
	case block.Len() > 0:
		return nil, fmt.Errorf("line %d: a PEM block has no end", line)
	case len(secrets) > MaxSecrets:
		return nil, ErrTooMany
	}
	return secrets, nil
}
