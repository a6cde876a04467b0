package controlplane

// The content encodings of a log body.
const (
	encIdentity = "identity"
	encGzip     = "gzip"
	encZstd     = "zstd"
	encSnappy   = "snappy" // the framing format
)
