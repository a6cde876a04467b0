package protocol

// ParseRecord reads one line of a log body, with or without its newline.
func ParseRecord(line []byte) (Record, error) { return parseGeneral(line) }

// wireRecord is a record as it stands in JSON.
type wireRecord struct {
	Time   *int64  `json:"ts"`
	Stream *Stream `json:"s"`
	Text   *string `json:"m"`
	Bytes  *[]byte `json:"b"`
	Part   bool    `json:"part"`
	EOF    bool    `json:"eof"`
	Gap    *int64  `json:"gap"`
	Reason string  `json:"reason"`
}

func parseGeneral(line []byte) (Record, error) {
	var w wireRecord
	if err := Decode(line, &w); err != nil {
		return Record{}, err
	}
	r := Record{Part: w.Part, EOF: w.EOF, Reason: w.Reason}
	if w.Time != nil {
		r.Time = *w.Time
	}
	if w.Stream != nil {
		r.Stream = *w.Stream
	}
	contents := 0
	if w.Text != nil {
		r.Text = *w.Text
		contents++
	}
	if w.Bytes != nil {
		r.Bytes = *w.Bytes
		contents++
	}
	if w.Gap != nil {
		if *w.Gap < 1 {
			return Record{}, fault("gap", "is %d, not a number from 1", *w.Gap)
		}
		r.Gap = *w.Gap
		contents++
	}
	switch {
	case contents != 1:
		return Record{}, fault("m", "is required, or b, or gap, and only one of them")
	case w.Gap != nil:
		return r, nil
	case w.Time == nil:
		return Record{}, fault("ts", "is required")
	case w.Stream == nil:
		return Record{}, fault("s", "is required")
	}
	switch r.Stream {
	case Stdout, Stderr, Remark:
		return r, nil
	default:
		return Record{}, fault("s", "is not out, err or agent")
	}
}
