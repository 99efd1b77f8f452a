package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON returns v on one line as json.Marshal does, but "<module>" stays readable, and
// characters that a terminal could act upon are escaped too.
func JSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	line := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if !bytes.ContainsFunc(line, Unsafe) {
		return line, nil
	}
	var out []byte
	for _, r := range string(line) {
		if !Unsafe(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out, nil
}

// WriteJSON writes v as JSON does, indented, and ends the line.
func WriteJSON(w io.Writer, v any) error {
	line, err := JSON(v)
	if err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	var out bytes.Buffer
	_ = json.Indent(&out, line, "", "  ") // of JSON it does not fail
	out.WriteByte('\n')
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}
