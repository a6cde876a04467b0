package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Open opens the journal at path, or makes it with room for slots entries, all of it allocated.
// A file with more slots keeps them; one with fewer grows if the disk lets it, and serves as it is if not.
func Open(path string, slots int) (*Journal, error) {
	if slots < 1 || slots > 1<<16 {
		return nil, fmt.Errorf("journal: %d slots are not between 1 and %d", slots, 1<<16)
	}
	j := &Journal{path: path}
	j.reopen = func() (device, error) {
		f, err := openDisk(path)
		if err != nil {
			return nil, err
		}
		return disk{f}, nil
	}
	f, err := j.openFile(slots)
	if err != nil {
		return nil, explain(path, slots, err)
	}
	j.dev = disk{f}
	if err := j.load(); err != nil {
		f.Close()
		return nil, explain(path, slots, err)
	}
	return j, nil
}

// explain says what to do about the faults that an operator can do something about.
func explain(path string, slots int, err error) error {
	dir := filepath.Dir(path)
	switch {
	case errors.Is(err, ErrInUse), errors.Is(err, errVersion):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("journal: no room for the reserved store (%d KiB) in %s; free some space: %w", halfOffset(slots, 0)>>10, dir, err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("journal: %s is on a read-only file system; the agent must be able to write there: %w", dir, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("journal: %s may not be written by this user: %w", dir, err)
	default:
		return fmt.Errorf("journal: %w", err)
	}
}

// openFile brings the file into its full shape and notes how many slots it has.
func (j *Journal) openFile(want int) (*os.File, error) {
	f, err := openDisk(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := create(j.path, want); err != nil {
			return nil, err
		}
		f, err = openDisk(j.path)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if !info.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s is not a regular file", j.path)
	}
	if err := j.shape(f, info.Size(), want); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (j *Journal) shape(f *os.File, size int64, want int) error {
	head := make([]byte, blockSize)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	slots, err := decodeHeader(head[:n])
	if errors.Is(err, errVersion) {
		return err
	}
	// What the file's length says: a slot that was cut counts, its rest is reported when it is read.
	have := int(max(0, size-blockSize+slotSize-1) / slotSize)
	if err != nil {
		d := Damage{Slot: -1, What: "header: " + err.Error()}
		d.Copy, _ = setAside(j.path, f, "header", 0, blockSize) // the header holds nothing that the rest doesn't tell
		j.damage = append(j.damage, d)
		slots = have
	}
	if slots > have || halfOffset(have, 0) > size {
		j.damage = append(j.damage, Damage{Slot: -1, What: fmt.Sprintf("the file was cut to %d bytes", size)})
	}
	full := max(slots, have)
	// Only what lies behind the end is written, and only zeros: a blank half.
	if end := halfOffset(full, 0); size < end {
		if err := allocate(f, size, end); err != nil {
			return err
		}
	}
	if want > full {
		if err := allocate(f, halfOffset(full, 0), halfOffset(want, 0)); err == nil {
			full = want
		} else if err := f.Truncate(halfOffset(full, 0)); err != nil { // else the next Open counts slots that have no room
			return err
		}
	}
	if full == 0 {
		return fmt.Errorf("reserve %d bytes: %w", halfOffset(want, 0), unix.ENOSPC)
	}
	if full != slots || err != nil {
		if _, err := f.WriteAt(encodeHeader(full), 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	j.slots = make([]slot, full)
	return nil
}

// load reads every slot; what is damaged is set aside.
func (j *Journal) load() error {
	cut := len(j.damage) > 0 // or the header is damaged: what reads as blank may be what is missing
	for i := range j.slots {
		if err := j.loadSlot(i, cut); err != nil {
			return err
		}
	}
	return nil
}

func (j *Journal) loadSlot(i int, damaged bool) error {
	s := &j.slots[i]
	*s = slot{}
	copied := true
	for half := range 2 {
		at := halfOffset(i, half)
		seq, entry, err := decodeHalf(newHalfReader(j.dev, i, half), i, half)
		switch {
		case err == nil:
			j.seq = max(j.seq, seq)
			if seq >= s.seq {
				s.half, s.seq, s.entry = half, seq, entry
			}
			continue
		case errors.Is(err, errBlank):
			continue
		}
		if _, ok := errors.AsType[*fs.PathError](err); ok {
			return err // the disk doesn't answer: this is no damage that we could judge
		}
		damaged = true
		d := Damage{Slot: i, What: fmt.Sprintf("half %d: %v", half, err)}
		d.Copy, err = setAside(j.path, j.dev, "slot"+strconv.Itoa(i)+"-"+strconv.Itoa(half), at, halfSize)
		j.damage = append(j.damage, d)
		if err != nil {
			copied = false
			continue
		}
		if err := j.write(make([]byte, halfHeader), at); err != nil {
			return err
		}
	}
	// The half that can't be read may have said that the command ran: whoever believed that it never did would give the
	// job to another agent, and it would run twice.
	if e := s.entry; damaged && e != nil && e.StartedAt.IsZero() {
		e.StartedAt = e.AcceptedAt
	}
	// Nothing of it can be read and nothing could be kept: left alone until there is room for a copy.
	s.aside = s.seq == 0 && !copied
	return nil
}
