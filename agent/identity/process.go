package identity

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
)

// NewProcessID makes this process's id: "<boot id>.<random>". The boot id tells people which
// boot of which machine a refused process was; the random part tells processes apart.
func NewProcessID() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("identity: process id: %w", err)
	}
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return "", fmt.Errorf("identity: process id: %w", err)
	}
	return strings.TrimSpace(string(boot)) + "." + hex.EncodeToString(random), nil
}
