package queue

import (
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"slices"
)

// keepDamaged copies what can't be read, before its pages are given to others: nothing that recovers deletes bytes. The copy
// lies beside the queue, has the queue's own format and size, and is sparse: superblocks, the slots in use, and the pages that are
// damaged or belong to a damaged slot, each at its place. It is named by what is in it, so that damage which stays,
// since what it lies in can't be shipped yet, is kept once and not at every start.
func (q *File) keepDamaged(path string, img *image) (name string, err error) {
	type stretch struct{ at, size int64 }
	keep := []stretch{{0, supersSize}}
	for i := range q.lay.slots {
		if load(q.slot(i)) != slotFree {
			keep = append(keep, stretch{q.lay.slotAt(i), slotSize})
		}
	}
	sum := uint32(0)
	for _, i := range slices.Sorted(maps.Keys(img.bad)) {
		at := q.lay.pageAt(i)
		keep = append(keep, stretch{at, int64(q.lay.pageSize)})
		sum = crc32.Update(sum, castagnoli, q.mem[at:at+int64(q.lay.pageSize)])
	}
	for _, i := range slices.Sorted(maps.Keys(img.badSlots)) {
		sum = crc32.Update(sum, castagnoli, q.slot(i))
	}
	name = fmt.Sprintf("%s.damaged-%08x", path, sum)
	if _, err := os.Stat(name); err == nil {
		return name, nil
	}
	f, err := os.OpenFile(name+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	err = f.Truncate(q.lay.size)
	for _, k := range keep {
		if err == nil {
			_, err = f.WriteAt(q.mem[k.at:k.at+k.size], k.at)
		}
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(name+".tmp", name)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(name+".tmp"))
	}
	return name, nil
}
