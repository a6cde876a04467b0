package protocol

import (
	"net"
	"testing"
)

// ParseGeneral is the slow reader that the fast one is held against.
var ParseGeneral = parseGeneral

// DialForTest dials as a poll does.
func DialForTest(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := newTransport(ClientConfig{}, poolPolls).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(patientConn).Conn
}
