package postgres

import "time"

// Skip makes s believe that d has passed.
func (s *Store) Skip(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.now
	s.now = func() time.Time { return was().Add(d) }
}
