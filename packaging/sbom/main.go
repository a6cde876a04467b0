// Command sbom prints a CycloneDX 1.5 bill of materials of a Go binary, from the module list that the
// toolchain put into it: what was linked in, not what was asked for.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
)

type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

type bom struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

func main() {
	version := flag.String("version", "devel", "the package's version")
	flag.Parse()
	if err := sbom(os.Stdout, *version, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func sbom(w io.Writer, version string, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: sbom -version V BINARY")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("what the binary is made of: %w", err)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(bill(filepath.Base(args[0]), version, info)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func bill(name, version string, info *debug.BuildInfo) bom {
	out := bom{Format: "CycloneDX", SpecVersion: "1.5", Version: 1, Metadata: metadata{component{
		Type: "application", Name: name, Version: version, PURL: "pkg:generic/" + name + "@" + version,
	}}}
	out.Components = append(out.Components, component{Type: "library", Name: "std", Version: info.GoVersion, PURL: "pkg:golang/std@" + info.GoVersion})
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		out.Components = append(out.Components, component{Type: "library", Name: dep.Path, Version: dep.Version, PURL: "pkg:golang/" + dep.Path + "@" + dep.Version})
	}
	return out
}
