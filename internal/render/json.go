package render

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
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

// A JSONWriter writes one object of JSON, each value and each element of a list as it is made. Close returns the
// first error.
type JSONWriter struct {
	*bufio.Writer
	newline, indent string
	begun           bool
	err             error
}

// NewJSONWriter returns a JSONWriter that begins each key and each element of a list with newline. With an indent
// it writes as WriteJSON does.
func NewJSONWriter(w io.Writer, newline, indent string) *JSONWriter {
	return &JSONWriter{Writer: bufio.NewWriterSize(w, 64<<10), newline: newline + indent, indent: indent}
}

// Field writes a key and its value.
func (w *JSONWriter) Field(name string, v any) {
	w.key(name)
	w.Value(v)
}

func (w *JSONWriter) key(name string) {
	begin := ","
	if !w.begun {
		begin, w.begun = "{", true
	}
	w.WriteString(begin + w.newline + "\"" + name + "\": ")
}

// Value writes a value as JSON returns it.
func (w *JSONWriter) Value(v any) {
	line, err := JSON(v)
	w.err = cmp.Or(w.err, err)
	if w.indent != "" {
		var b bytes.Buffer
		_ = json.Indent(&b, line, w.newline[1:], w.indent) // of JSON it does not fail
		line = b.Bytes()
	}
	w.Write(line)
}

// List writes a key and its elements, each by one call of element.
func List[T any](w *JSONWriter, key string, elements []T, element func(*T)) {
	w.key(key)
	outer := w.newline
	w.newline += w.indent
	w.WriteByte('[')
	for i := range elements {
		if i > 0 {
			w.WriteByte(',')
		}
		w.WriteString(w.newline)
		element(&elements[i])
	}
	if w.newline = outer; len(elements) > 0 && w.indent != "" {
		w.WriteString(w.newline)
	}
	w.WriteByte(']')
}

// Close ends the object and the line.
func (w *JSONWriter) Close() error {
	w.WriteString(strings.TrimSuffix(w.newline, w.indent) + "}\n")
	if err := cmp.Or(w.Flush(), w.err); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}
