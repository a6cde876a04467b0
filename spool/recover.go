package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// recover reads what the directory holds. It deletes nothing but trash: what can't be read goes
// into quarantine.
func (s *Spool) recover() error {
	for _, name := range dirNames(filepath.Join(s.cfg.Dir, trashDir)) {
		// A crash between renaming and removing left it.
		if err := os.RemoveAll(filepath.Join(s.cfg.Dir, trashDir, name)); err != nil {
			s.log.Warn("trash wasn't removed", zap.String("name", name), zap.Error(err))
		}
	}
	s.recoverState()
	for _, name := range dirNames(filepath.Join(s.cfg.Dir, epochsDir)) {
		id, ok := parseEpochName(name)
		if !ok {
			s.log.Warn("spool holds something that is no epoch", zap.String("name", name))
			continue
		}
		s.nextID = max(s.nextID, id)
		if err := s.recoverEpoch(id, filepath.Join(s.cfg.Dir, epochsDir, name)); err != nil {
			return fmt.Errorf("epoch %d: %w", id, err)
		}
	}
	s.nextID++
	for _, e := range s.epochs {
		for id, sp := range e.spans {
			a := s.attempt(id)
			if a.meta == nil {
				a.meta = sp.meta
			}
			a.end = max(a.end, sp.next)
			if !e.shippedAt.IsZero() { // also when the cursors are lost
				a.acked = max(a.acked, sp.next)
			}
		}
	}
	s.quarantined = diskUsage(filepath.Join(s.cfg.Dir, quarantineDir))
	for _, name := range dirNames(filepath.Join(s.cfg.Dir, deadDir)) {
		if id, err := strconv.ParseUint(name, 10, 64); err == nil {
			s.nextDead = max(s.nextDead, id)
			s.dead++
		}
	}
	s.deadBytes = diskUsage(filepath.Join(s.cfg.Dir, deadDir))
	if s.holesDirty {
		if err := s.writeHoles(); err != nil {
			s.log.Warn("holes weren't written", zap.Error(err))
		}
	}
	return nil
}

func (s *Spool) recoverState() {
	cs, hs, damaged := stateFiles(s.cfg.Dir)
	for _, name := range sortedKeys(damaged) {
		s.log.Error("spool file was damaged", zap.String("name", name), zap.Error(damaged[name]))
		s.quarantine(filepath.Join(s.cfg.Dir, name), name)
	}
	for id, c := range cs {
		a := s.attempt(id)
		a.acked, a.end, a.state, a.meta = c.Next, c.End, c.State, c.Meta
	}
	for id, h := range hs {
		a := s.attempt(id)
		if a.meta == nil {
			a.meta = h.Meta
		}
		for _, h := range h.Holes {
			a.addHole(h)
		}
	}
}

// recoverEpoch takes one epoch in, whatever state a crash or damage left it in. Only an error that
// says nothing about the epoch (descriptors, permissions) is returned.
func (s *Spool) recoverEpoch(id uint64, dir string) error {
	e := &epoch{id: id, dir: dir, phase: phaseSealed, lastWrite: time.Now()}
	ix, err := openIndex(dir, false)
	if err == nil {
		_, err := os.Stat(filepath.Join(dir, vlogName))
		if errors.Is(err, fs.ErrNotExist) {
			e.spans = ix.spans
			s.loseEpoch(e, ReasonMissing, "value log is missing")
			return nil
		}
	} else {
		if !errors.Is(err, fs.ErrNotExist) {
			if !isDamage(err) {
				return err
			}
			s.log.Error("epoch's index was damaged", zap.Uint64("epoch", id), zap.Error(err))
			s.quarantine(filepath.Join(dir, indexName), epochName(id)+"-"+indexName)
			e.markDamaged()
		}
		if ix, err = s.adopt(e); err != nil || ix == nil {
			return err
		}
	}
	e.spans = ix.spans
	e.ix = &index{}
	if _, err := os.Stat(filepath.Join(dir, damagedName)); err == nil {
		e.damaged = true
	}
	if info, err := os.Stat(filepath.Join(dir, shippedName)); err == nil {
		e.shippedAt = info.ModTime()
	}
	e.disk = diskUsage(dir)
	s.epochs = append(s.epochs, e)
	return nil
}

// adopt reads an epoch that wasn't sealed: the process ended while it was open, or while it was
// being made. It returns nil for one that holds nothing.
func (s *Spool) adopt(e *epoch) (*index, error) {
	res, err := scanEpoch(e.dir)
	if err != nil {
		return nil, err
	}
	if len(res.damage) > 0 {
		s.log.Error("epoch was damaged", zap.Uint64("epoch", e.id), zap.Errors("err", res.damage))
	}
	if res.readables == 0 {
		_, err := os.Stat(filepath.Join(e.dir, openingName))
		if err == nil || len(res.damage) == 0 && (res.torn == nil || res.dropped) {
			// Nothing was accepted before the marker was gone, or ever.
			s.trash(e.dir)
			return nil, nil //nolint:nilnil // there is no epoch, and nothing failed
		}
		s.thin(e, res)
		e.spans = res.ix.spans
		s.loseEpoch(e, ReasonCorrupt, "nothing in it can be read")
		return nil, nil //nolint:nilnil // there is no epoch, and nothing failed
	}
	if res.torn != nil && res.readables > 0 {
		s.log.Info("epoch ended in the middle of a write", zap.Uint64("epoch", e.id), zap.NamedError("at", res.torn))
	}
	if len(res.damage) > 0 {
		s.log.Error("epoch was damaged", zap.Uint64("epoch", e.id), zap.Errors("err", res.damage))
		e.markDamaged()
	}
	s.thin(e, res)
	// Without an index, the next start scans again: nothing else depends on it.
	if err := writeIndex(e.dir, res.ix); err != nil {
		s.log.Warn("epoch's index wasn't written", zap.Uint64("epoch", e.id), zap.Error(err))
	}
	s.log.Info("epoch of an earlier process adopted", zap.Uint64("epoch", e.id), zap.Int("batches", res.readables))
	return res.ix, nil
}

// thin gives back what was allocated and never written: zeros, checked to be such.
func (s *Spool) thin(e *epoch, res scanResult) {
	punch(filepath.Join(e.dir, vlogName), res.vlogEnd)
	punch(filepath.Join(e.dir, walName), res.walEnd)
	punch(filepath.Join(e.dir, discardName), 0)
	if err := os.Remove(filepath.Join(e.dir, ballastName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("ballast wasn't removed", zap.Uint64("epoch", e.id), zap.Error(err))
	}
}

// loseEpoch sets a whole epoch aside and enters what it held as holes, durably and first.
func (s *Spool) loseEpoch(e *epoch, reason, detail string) {
	s.log.Error("epoch was set aside", zap.Uint64("epoch", e.id), zap.String("detail", detail))
	for id, sp := range e.spans {
		a := s.attempt(id)
		if a.meta == nil {
			a.meta = sp.meta
		}
		a.addHole(hole{First: sp.first, Next: sp.next, Reason: reason})
		s.corrupt += uint64(sp.batches)
	}
	if err := s.writeHoles(); err != nil {
		s.log.Warn("holes weren't written", zap.Error(err))
	}
	s.quarantine(e.dir, epochName(e.id))
}

// quarantine renames a file or directory out of the way. What can't be renamed stays where it is.
func (s *Spool) quarantine(path, name string) {
	if s.moveTo(quarantineDir, path, name) {
		s.log.Warn("damaged data was put into quarantine", zap.String("name", name))
	}
}

// trash removes a directory in two steps, so that a crash leaves all of it or a piece of trash.
func (s *Spool) trash(path string) bool {
	name := filepath.Base(path)
	if !s.moveTo(trashDir, path, name) {
		return false
	}
	for _, n := range dirNames(filepath.Join(s.cfg.Dir, trashDir)) {
		if err := os.RemoveAll(filepath.Join(s.cfg.Dir, trashDir, n)); err != nil {
			s.log.Warn("trash wasn't removed", zap.String("name", n), zap.Error(err))
		}
	}
	return true
}

func (s *Spool) moveTo(area, path, name string) bool {
	to := filepath.Join(s.cfg.Dir, area)
	err := os.MkdirAll(to, dirMode)
	target := filepath.Join(to, name)
	for n := 1; err == nil; n++ {
		if _, serr := os.Lstat(target); errors.Is(serr, fs.ErrNotExist) {
			break
		}
		target = filepath.Join(to, fmt.Sprintf("%s.%d", name, n))
	}
	if err == nil {
		err = os.Rename(path, target)
	}
	if err == nil {
		err = errors.Join(syncDir(to), syncDir(filepath.Dir(path)))
	}
	if err != nil {
		s.log.Error("spool data couldn't be moved", zap.String("name", name), zap.String("area", area), zap.Error(err))
	}
	return err == nil
}

// isDamage tells damage, a sector that can't be read included, from what has nothing to do with
// the file: descriptors and permissions.
func isDamage(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.EACCES, unix.EPERM} {
		if errors.Is(err, e) {
			return false
		}
	}
	return true
}

func dirNames(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // not there, on a disk that was full at the first start
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}
