// Package redact replaces secrets in a job's output by [redacted], as it streams.
//
// # What is found
//
// Each secret as it is; in base64 (standard and URL alphabets, at each of the three alignments that it can have
// within a longer text, and wrapped at 64 or 76 columns from its start); URL-encoded,
// in the ways that the usual libraries do it; and as it stands in a JSON string. Of a secret of several lines
// also each line that is long enough. Matching is on the byte stream, before it is split into lines and
// records, so where a read, a line or a record ends makes no difference. The leftmost match wins, and of those that
// begin there the longest.
//
// # What is held back
//
// Only bytes that may be the beginning of a secret. They go on as soon as a byte comes that decides,
// or the stream ends. A beginning of fewer than four bytes goes on after 250 ms in any case, so that a
// progress dot is seen even if some secret starts with a dot; should the rest of that secret follow, it
// is still replaced, and at most its first three bytes were shown.
//
// # What is not found
//
// Other encodings (hex, gzip), secrets with something in between (colours, line numbers), pieces of a
// secret. Secrets of fewer than four bytes are refused: they would redact half of every log.
package redact
