package memoryviz

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"
)

// A jsonWriter is an encoder of JSON. The elements of outer lists stand on lines of
// their own. Close returns the first error.
type jsonWriter struct {
	w      *bufio.Writer
	inside []jsonContainer
}

type jsonContainer struct {
	dict  bool
	items int // a key and its value are one each
}

// lineDepth is how deep a list lies whose elements have lines of their own.
const lineDepth = 3

func newJSON(w io.Writer) *jsonWriter {
	return &jsonWriter{w: bufio.NewWriterSize(w, 64<<10)}
}

// begin writes what is before a value.
func (j *jsonWriter) begin() {
	if len(j.inside) == 0 {
		return
	}
	c := &j.inside[len(j.inside)-1]
	switch {
	case c.dict && c.items%2 == 1:
		j.w.WriteByte(':')
	case c.items > 0:
		j.w.WriteByte(',')
	}
	if !c.dict && len(j.inside) <= lineDepth {
		j.w.WriteByte('\n')
	}
	c.items++
}

// Close ends the value. It does not close what is written to.
func (j *jsonWriter) Close() error {
	j.w.WriteByte('\n')
	return j.w.Flush()
}

func (j *jsonWriter) Int(v int64) {
	j.begin()
	j.w.Write(strconv.AppendInt(j.w.AvailableBuffer(), v, 10))
}

func (j *jsonWriter) Bool(v bool) {
	j.begin()
	j.w.Write(strconv.AppendBool(j.w.AvailableBuffer(), v))
}

func (j *jsonWriter) String(s string) {
	j.begin()
	b, _ := json.Marshal(s) // a string always can
	j.w.Write(b)
}

func (j *jsonWriter) Pair(a, b int64) {
	j.List(nil, func() {
		j.Int(a)
		j.Int(b)
	})
}

func (j *jsonWriter) List(_ any, items func()) { j.contain(false, "[", "]", items) }

func (j *jsonWriter) Dict(_ any, items func()) { j.contain(true, "{", "}", items) }

func (j *jsonWriter) contain(dict bool, begin, end string, items func()) {
	j.begin()
	j.w.WriteString(begin)
	j.inside = append(j.inside, jsonContainer{dict: dict})
	items()
	j.inside = j.inside[:len(j.inside)-1]
	j.w.WriteString(end)
}
