package main

import (
	"io"
	"os"

	"github.com/coreos/go-systemd/v22/journal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// newLogger logs to w: for people on a terminal, as JSON under systemd's journal and into files and pipes.
func newLogger(w io.Writer, level zap.AtomicLevel) *zap.Logger {
	cfg := zap.NewProductionEncoderConfig()
	cfg.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.TimeKey = "time"
	encoder := zapcore.NewJSONEncoder(cfg)
	if readable(w) {
		cfg.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		cfg.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(cfg)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level))
}

func readable(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	if f == os.Stderr {
		if j, err := journal.StderrIsJournalStream(); err == nil && j {
			return false
		}
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// setLevel takes one of the words that the config allows.
func setLevel(level zap.AtomicLevel, word string) {
	if l, err := zapcore.ParseLevel(word); err == nil {
		level.SetLevel(l)
	}
}
