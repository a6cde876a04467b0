package main

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger logs to w: readable on a terminal, JSON otherwise.
func newLogger(w io.Writer, level, format string) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil || l > zapcore.ErrorLevel {
		return nil, usage("--log-level %q: want debug, info, warn or error", level)
	}
	if format == "auto" {
		format = "json"
		if isTerminal(w) {
			format = "console"
		}
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.TimeKey, cfg.EncodeTime = "time", zapcore.RFC3339NanoTimeEncoder
	cfg.EncodeDuration = zapcore.StringDurationEncoder
	var enc zapcore.Encoder
	switch format {
	case "json":
		enc = zapcore.NewJSONEncoder(cfg)
	case "console":
		cfg.EncodeTime, cfg.EncodeLevel = zapcore.TimeEncoderOfLayout("15:04:05.000"), zapcore.CapitalLevelEncoder
		enc = zapcore.NewConsoleEncoder(cfg)
	default:
		return nil, usage("--log-format %q: want auto, console or json", format)
	}
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(w)), l)), nil
}

// memoryShare is how much of the cgroup's memory the heap may have before the collector works
// harder: the rest is for stacks, SQLite's own memory and what the kernel counts to us.
const memoryShare = 0.8

// limitMemory makes the collector respect a container's limit, unless GOMEMLIMIT says otherwise.
// (The number of processors in a container the runtime finds by itself.)
func limitMemory(log *zap.Logger, getenv func(string) string) {
	if getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := cgroupMemory("/proc/self/cgroup", "/sys/fs/cgroup")
	if limit == math.MaxInt64 {
		return
	}
	heap := int64(float64(limit) * memoryShare)
	debug.SetMemoryLimit(heap)
	log.Debug("memory limit set", zap.Int64("bytes", heap), zap.Int64("cgroup", limit))
}

// cgroupMemory is the least memory.max from our cgroup (version 2) up to the root, MaxInt64 if there is none.
func cgroupMemory(self, root string) int64 {
	limit := int64(math.MaxInt64)
	raw, err := os.ReadFile(self)
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(raw)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for dir := filepath.Clean("/" + path); ; dir = filepath.Dir(dir) {
			if v, err := os.ReadFile(filepath.Join(root, dir, "memory.max")); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(v)), 10, 64); err == nil && n > 0 {
					limit = min(limit, n)
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}
