// Package version says which build this is.
package version

import (
	"runtime/debug"
	"strings"
)

// version is set by the linker (-X agentd/internal/version.version=…) in packaged builds.
var version string

// String is the build's version: the linker's word, else the revision that the toolchain
// stamped, else "devel".
func String() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return strings.TrimPrefix(v, "v")
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}
