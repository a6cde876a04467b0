package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// Decode reads one JSON object as the protocol wants it read, where encoding/json is too
// lenient: names match exactly, the text is UTF-8, and a field tagged `wire:"required"` must be
// there and not null. Unknown fields are ignored. A fault is a *FieldError, but for text that
// is no JSON object at all. v must point to a struct. It reads requests as well as answers.
func Decode(data []byte, v any) error {
	if !utf8.Valid(data) {
		return errors.New("is not UTF-8")
	}
	return decodeStruct(data, reflect.ValueOf(v).Elem(), "")
}

func decodeStruct(data []byte, v reflect.Value, at string) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil || members == nil {
		if at != "" {
			return &FieldError{Field: at, Why: "is not an object"}
		}
		if err == nil {
			return errors.New("is not a JSON object")
		}
		return fmt.Errorf("is not a JSON object: %w", err)
	}
	t := v.Type()
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		path := name
		if at != "" {
			path = at + "." + name
		}
		raw, there := members[name]
		if !there || bytes.Equal(raw, []byte("null")) {
			if field.Tag.Get("wire") == "required" {
				return &FieldError{Field: path, Why: "is required"}
			}
			continue
		}
		if err := decodeValue(raw, v.Field(i), path); err != nil {
			return err
		}
	}
	return nil
}

func decodeValue(raw []byte, v reflect.Value, at string) error {
	switch t := v.Type(); {
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		v.Set(reflect.New(t.Elem()))
		return decodeStruct(raw, v.Elem(), at)
	case t.Kind() == reflect.Struct && t != reflect.TypeFor[time.Time]():
		return decodeStruct(raw, v, at)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil {
			return &FieldError{Field: at, Why: "is not an array"}
		}
		v.Set(reflect.MakeSlice(t, len(items), len(items)))
		for i, item := range items {
			if err := decodeStruct(item, v.Index(i), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		return &FieldError{Field: at, Why: "is not " + wanted(v.Type())}
	}
	return nil
}

// wanted names a type as a reader of the protocol knows it.
func wanted(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "an RFC 3339 time"
	case t == reflect.TypeFor[[]byte]():
		return "padded standard base64"
	}
	switch t.Kind() { //nolint:exhaustive // the kinds that the wire's types have
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number in range"
	case reflect.Slice:
		return "an array of the right kind"
	case reflect.Map:
		return "an object of strings"
	default:
		return "of the right type"
	}
}
