package heap

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
)

func (r *objectReader) isCode(at uint64) bool { return r.typeOf(at).name == "code" }

// firstLine returns the line at which code begins.
func (r *objectReader) firstLine(code uint64) int {
	return int(int32(r.mem.word(code + uint64(r.lay.firstLine))))
}

// functionPlace returns where the program has the class of a custom Function, by its forward:
// " (class Scale, scale.py:12)", "" if that is not known.
func (r *objectReader) functionPlace(c *class) string {
	class := r.item(r.mem.word(c.address+typeDict), "_forward_cls")
	name, ok := r.className(class)
	forward := r.item(r.mem.word(class+typeDict), "forward")
	if r.typeOf(forward).name == "staticmethod" {
		forward = r.mem.word(forward + 16)
	}
	code := r.mem.word(forward + uint64(r.lay.funcCode))
	if !ok || r.typeOf(forward).shape != shapeFunction || !r.isCode(code) {
		return ""
	}
	file := r.text(r.mem.word(code + uint64(r.lay.fileName))).s
	return fmt.Sprintf(" (class %s, %s:%d)", shortName(name), path.Base(file), r.firstLine(code))
}

// where returns how a frame is shown: "step() in train.py:88".
func (r *objectReader) where(f *frame) string {
	name, file := r.text(r.mem.word(f.code+uint64(r.lay.name))), r.text(r.mem.word(f.code+uint64(r.lay.fileName)))
	out := "?"
	if name.kind == textStr {
		out = name.s
	}
	if !f.module {
		out += "()"
	}
	if file.kind == textStr {
		out += " in " + path.Base(file.s)
		if f.line > 0 {
			out += ":" + strconv.Itoa(f.line)
		}
	}
	return out
}

// line returns the line that a frame is at, 0 if it is not known.
func (r *objectReader) line(at, code uint64) int {
	l := r.lay
	first := r.firstLine(code)
	table := r.mem.word(code + uint64(l.lineTable))
	size := r.mem.word(table + 16)
	if table == 0 || size > maxLines {
		return 0
	}
	t := LineTable{Bytes: bytes.Clone(r.mem.bytes(table+32, int(size))), First: first}
	if l.minor > 10 {
		instruction := r.mem.word(at + uint64(l.instruction))
		line, _ := t.Line311(int(int64(instruction-code-uint64(l.bytecode)) / 2))
		return line
	}
	last := r.mem.bytes(at+uint64(l.instruction), 4)
	if last == nil {
		return 0
	}
	i := int(int32(uint32(last[0]) | uint32(last[1])<<8 | uint32(last[2])<<16 | uint32(last[3])<<24))
	lineOf := t.Line36
	if l.minor == 10 {
		lineOf = t.Line310
	}
	line, _ := lineOf(i)
	return line
}
