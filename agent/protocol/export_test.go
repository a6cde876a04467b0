package protocol

// ParseGeneral is the slow reader that the fast one is held against.
var ParseGeneral = parseGeneral
