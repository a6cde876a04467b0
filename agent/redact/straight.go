package redact

import (
	"io"
	"os"
	"sync"
)

// Straight is a stream that needs no filter yet: its reader may read the file itself, without a copy in between,
// until the set gets its first secret. From then on, and for a reader that doesn't know of this, Read brings the
// filtered stream. It is read by one goroutine.
type Straight struct {
	set      *Set
	file     *os.File
	filtered *io.PipeReader
	once     sync.Once
	asked    chan struct{} // closed when the filter has to begin
	n        int64         // bytes read past the filter; the reader's own until asked is closed
}

// File is what may be read between Begin and End.
func (s *Straight) File() *os.File { return s.file }

// Begin says whether one read of File may be made, which must not block and be followed by End. Once it said
// no it always will, and Read takes over.
func (s *Straight) Begin() bool {
	s.set.straight.RLock()
	if s.set.Empty() {
		return true
	}
	s.set.straight.RUnlock()
	return false
}

// End follows each read that Begin allowed; n is how many bytes it brought.
func (s *Straight) End(n int) {
	s.n += int64(n)
	s.set.straight.RUnlock()
}

// Read reads the filtered stream.
func (s *Straight) Read(p []byte) (int, error) {
	s.once.Do(func() { close(s.asked) })
	return s.filtered.Read(p)
}
