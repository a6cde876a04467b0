package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"agentd/agent/protocol"
)

// maxRequest bounds what the API reads: thousands of rules.
const maxRequest = 1 << 20

// API serves /mock/v1/faults and /mock/v1/outage. It asks for no credential: wrap it. Keep it
// off the port that the faults are for.
func API(in *Injector, out *Outage) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /mock/v1/faults", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Rules *[]Rule `json:"rules"`
		}
		err := decode(w, r, &body)
		if err == nil && body.Rules == nil {
			err = errors.New("faults: rules is missing")
		}
		if err == nil {
			err = in.SetRules(*body.Rules)
		}
		if refused(w, err) {
			return
		}
		writeRules(w, in)
	})
	mux.HandleFunc("GET /mock/v1/faults", func(w http.ResponseWriter, _ *http.Request) { writeRules(w, in) })
	mux.HandleFunc("DELETE /mock/v1/faults", func(w http.ResponseWriter, _ *http.Request) {
		if !refused(w, in.SetRules(nil)) {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.HandleFunc("PUT /mock/v1/outage", func(w http.ResponseWriter, r *http.Request) {
		var spec OutageSpec
		err := decode(w, r, &spec)
		if err == nil {
			err = out.Begin(spec)
		}
		if refused(w, err) {
			return
		}
		writeJSON(w, out.State())
	})
	mux.HandleFunc("GET /mock/v1/outage", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, out.State()) })
	mux.HandleFunc("DELETE /mock/v1/outage", func(w http.ResponseWriter, _ *http.Request) {
		out.End()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("/mock/v1/faults", wrongMethod)
	mux.HandleFunc("/mock/v1/outage", wrongMethod)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, protocol.Problem{Status: http.StatusNotFound, Code: protocol.CodeNotFound, Detail: "no such resource: " + r.URL.Path})
	})
	return mux
}

func wrongMethod(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "GET, PUT, DELETE")
	writeProblem(w, protocol.Problem{Status: http.StatusMethodNotAllowed, Code: protocol.CodeInvalid, Detail: r.Method + " isn't served here"})
}

// decode is strict: a fault that isn't the one that was meant makes a test prove nothing.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("faults: more than one JSON value")
	}
	return nil
}

func refused(w http.ResponseWriter, err error) bool {
	if err == nil {
		return false
	}
	p := protocol.Problem{Status: http.StatusBadRequest, Code: protocol.CodeInvalid, Detail: err.Error()}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		p.Status, p.Code = http.StatusRequestEntityTooLarge, protocol.CodeTooLarge
	}
	writeProblem(w, p)
	return true
}

func writeRules(w http.ResponseWriter, in *Injector) {
	writeJSON(w, struct {
		Rules []RuleState `json:"rules"`
	}{in.Rules()})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the client's loss
}
