package secrets

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// orders is the job's payload.
type orders struct {
	Agentd string // the binary
	File   string // of secrets that the config names
	Dir    string // where the job tells the test what it did
}

// filler lines are long enough that few of them cross the edges of pages and batches.
const filler = "control: nothing secret in this line, of which many are printed so that edges are crossed\n"

// printSecrets is the job: it gets at secrets in each way there is, and prints them in each way it can.
func printSecrets(how string) error {
	var o orders
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	listed, err := os.ReadFile(o.File)
	if err != nil {
		return err
	}
	first, pem, _ := strings.Cut(strings.TrimSpace(string(listed)), "\n")
	secrets := []string{first, pem, os.Getenv("NAMED_BY_CONFIG"), os.Getenv("NAMED_BY_JOB")}
	if how == "late" {
		// Printed before it is a secret: the short way is in use until then.
		secrets = nil
		os.Stdout.WriteString("control: before\n")
	}
	for range 2 {
		late := rand.Text()
		secrets = append(secrets, late)
		cmd := exec.Command(o.Agentd, "redact")
		cmd.Stdin = strings.NewReader(late + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("agentd redact: %w: %s", err, out)
		}
		os.Stdout.WriteString("control: " + late + "\n")
	}
	told, err := json.Marshal(secrets)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "secrets"), told, 0o600); err != nil {
		return err
	}
	for _, s := range secrets {
		printAll(os.Stderr, s)
		printAll(os.Stdout, s, 64<<10, 256<<10)
	}
	os.Stderr.WriteString("control: the end\n")
	os.Stdout.WriteString("control: the end\n")
	if err := os.WriteFile(filepath.Join(o.Dir, "printed"), nil, 0o600); err != nil {
		return err
	}
	for { // until the test has looked
		if _, err := os.Stat(filepath.Join(o.Dir, "go")); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		<-time.After(20 * time.Millisecond)
	}
}

func printAll(out *os.File, s string, edges ...int) {
	fmt.Fprintf(out, "control: password=%s;\n", s)
	for i := range len(s) { // byte by byte, some of them after the agent has read the ones before
		out.WriteString(s[i : i+1])
		if i%7 == 0 {
			<-time.After(time.Millisecond)
		}
	}
	out.WriteString("\n")
	std := base64.StdEncoding
	for _, text := range []string{
		std.EncodeToString([]byte(s)), std.EncodeToString([]byte("u:" + s)), std.EncodeToString([]byte("user:" + s + "\n")), std.EncodeToString([]byte("usr" + s)),
		base64.URLEncoding.EncodeToString([]byte(s)), url.QueryEscape(s), url.PathEscape("a b" + s),
	} {
		out.WriteString(text + "\n")
	}
	// Over the edges of pipe reads (64 KiB) and batches (256 KiB): each place before an edge that the secret could begin at.
	for _, edge := range edges {
		for _, before := range []int{1, len(s) / 2, len(s) - 1} {
			text := bytes.Repeat([]byte(filler), edge/len(filler)+1)[:edge-before]
			out.Write(append(text, s+"\n"...))
		}
	}
}
