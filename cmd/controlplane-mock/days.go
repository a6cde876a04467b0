package main

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// days is a time to keep something: whole days (30d), or a duration as Go writes it. The zero value is for ever.
type days time.Duration

const day = 24 * time.Hour

func (d *days) String() string {
	switch v := time.Duration(*d); {
	case v == 0:
		return ""
	case v%day == 0:
		return strconv.FormatInt(int64(v/day), 10) + "d"
	default:
		return v.String()
	}
}

// Set reads what String writes.
func (d *days) Set(s string) error {
	v, err := time.ParseDuration(s)
	if n, whole := strings.CutSuffix(s, "d"); whole {
		var count int64
		if count, err = strconv.ParseInt(n, 10, 64); err == nil && count > math.MaxInt64/int64(day) {
			err = strconv.ErrRange
		}
		v = time.Duration(count) * day
	}
	if err != nil || v <= 0 {
		return errors.New("want a number of days, as 30d, or a duration, as 36h")
	}
	*d = days(v)
	return nil
}

// Type names the value in help texts.
func (*days) Type() string { return "duration" }
