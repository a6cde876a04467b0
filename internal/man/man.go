// Package man writes manual pages out of a command tree, so that they never say anything else than --help.
package man

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Command is the hidden `man DIR`, which the packages are built with: a page for every command of root.
func Command(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages into DIR (dated $SOURCE_DATE_EPOCH, if it is set)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // pages are for everybody
				return fmt.Errorf("man: %w", err)
			}
			root.DisableAutoGenTag = true // it carries a date of its own
			header := &doc.GenManHeader{Section: "1", Source: root.Name(), Manual: "User Commands"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("man: %w", err)
			}
			return nil
		},
	}
}
