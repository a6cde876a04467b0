package protocol_test

import (
	"crypto/ed25519"
	"encoding/json"
	"testing"

	"agentd/agent/protocol"
)

func TestLinkMessageIsLengthPrefixed(t *testing.T) {
	const want = "\x00\x00\x00\x0eagentd-link-v1" + "\x00\x00\x00\x02n1" + "\x00\x00\x00\x00" + "\x00\x00\x00\x06srv_é"
	if got := string(protocol.LinkMessage("n1", "", "srv_é")); got != want {
		t.Fatalf("got %q", got)
	}
}

func TestALinkIsGoodForOneKeyNonceAgentAndServer(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := protocol.LinkRequest{AgentID: "agt_1", ProcessID: "b.p"}
	protocol.SignLink(&r, key, protocol.Challenge{Nonce: "n", ServerID: "srv_1"})
	if !protocol.VerifyLink(r, "srv_1") || r.Validate() != nil {
		t.Fatalf("a good link is refused: %v", r.Validate())
	}
	for name, change := range map[string]func(*protocol.LinkRequest){
		"nonce":     func(r *protocol.LinkRequest) { r.Nonce = "n2" },
		"agent":     func(r *protocol.LinkRequest) { r.AgentID = "agt_2" },
		"shifted":   func(r *protocol.LinkRequest) { r.Nonce, r.AgentID = "nagt", "_1" },
		"key":       func(r *protocol.LinkRequest) { r.PublicKey = other.Public().(ed25519.PublicKey) },
		"no key":    func(r *protocol.LinkRequest) { r.PublicKey = nil },
		"short key": func(r *protocol.LinkRequest) { r.PublicKey = r.PublicKey[:31] },
		"signature": func(r *protocol.LinkRequest) { r.Signature = make([]byte, 64) },
		"none":      func(r *protocol.LinkRequest) { r.Signature = nil },
	} {
		changed := r
		change(&changed)
		if protocol.VerifyLink(changed, "srv_1") {
			t.Errorf("%s: changed, and still good", name)
		}
	}
	if protocol.VerifyLink(r, "srv_2") {
		t.Error("good for another server, too")
	}
}

func FuzzDecodeLink(f *testing.F) {
	f.Add([]byte(`{"agentId":"","publicKey":"AAAA","name":"h","labels":{"a":"b"},"types":["x"],"processId":"b.p","start":true,"nonce":"n","signature":"AAAA"}`))
	f.Add([]byte(`{"start":null}`))
	f.Add([]byte(`{"labels":{"a":null},"types":[null],"publicKey":"!"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r protocol.LinkRequest
		if protocol.Decode(data, &r) != nil || r.Validate() != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back protocol.LinkRequest
		if err := protocol.Decode(again, &back); err != nil || back.Validate() != nil {
			t.Fatalf("%s can't be read back: %v", again, err)
		}
	})
}

func TestDecodeNamesTheField(t *testing.T) {
	const good = `"publicKey":"AAAA","processId":"b.p","start":false,"nonce":"n","signature":"AAAA"`
	for body, want := range map[string]string{
		`{"processId":"b.p","start":true,"nonce":"n","signature":"AA=="}`: "publicKey: is required",
		`{"publicKey":"AAAA","processId":"b.p","nonce":"n"}`:              "start: is required",
		`{"publicKey":"AAAA","processId":"b.p","start":null}`:             "start: is required",
		`{"PublicKey":"AAAA"}`:                   "publicKey: is required",
		`{` + good + `,"types":"x"}`:             "types: is not an array of the right kind",
		`{` + good + `,"types":[1]}`:             "types: is not an array of the right kind",
		`{` + good + `,"labels":{"a":1}}`:        "labels: is not an object of strings",
		`{` + good + `,"name":{}}`:               "name: is not a string",
		`{"publicKey":"*"}`:                      "publicKey: is not padded standard base64",
		`{"publicKey":"AAAA","processId":7}`:     "processId: is not a string",
		`{` + good + `}{}`:                       "is not a JSON object: invalid character '{' after top-level value",
		`"x"`:                                    "is not a JSON object: json: cannot unmarshal string into Go value of type map[string]json.RawMessage",
		`null`:                                   "is not a JSON object",
		"{" + good + ",\"name\":\"\xff\"}":       "is not UTF-8",
		`{` + good + `,"unknown":{"a":[1,2,3]}}`: "",
	} {
		var r protocol.LinkRequest
		err := protocol.Decode([]byte(body), &r)
		if got := errorText(err); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", body, got, want)
		}
	}
	var a protocol.Activated
	err := protocol.Decode([]byte(`{"queries":[{"id":"q_1","leaseToken":"l","type":"t","connector":"c","remainingMs":1,"query":{}},{"id":7}]}`), &a)
	if want := "queries[1].id: is not a string"; errorText(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
	var h protocol.Heartbeat
	if err := protocol.Decode([]byte(`{"leaseTtlMs":1,"heartbeatMs":1,"cancel":{"graceMs":"x"}}`), &h); errorText(err) != "cancel.graceMs: is not a whole number in range" {
		t.Errorf("got %v", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
