package heap

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"strings"
)

func (r *objectReader) isCode(at uint64) bool { return r.typeOf(at).name == "code" }

// firstLine returns the line at which code begins.
func (r *objectReader) firstLine(code uint64) int {
	return int(int32(r.mem.word(code + uint64(r.lay.firstLine))))
}

// classPlace returns where the program has a class: " (class Scale, scale.py:12)", "" if that is not known.
// A class says its line from 3.13 on. Before, it is that of the first function in it.
func (r *objectReader) classPlace(c *class) string {
	at := c.address
	if c.function { // PyTorch made it for a class of the program
		r.eachItem(r.mem.word(at+typeDict), func(key, value uint64) bool {
			if r.text(key).s == "_forward_cls" {
				at = value
			}
			return at == c.address
		})
	}
	name, _ := r.className(at)
	name = shortName(name)
	file, first, declared := "", 0, 0
	r.eachItem(r.mem.word(at+typeDict), func(key, value uint64) bool {
		k := r.text(key).s
		if k == "__firstlineno__" {
			declared, _ = strconv.Atoi(r.text(value).s)
		}
		if t := r.typeOf(value).name; t == "staticmethod" || t == "classmethod" {
			value = r.mem.word(value + 16)
		}
		code := r.mem.word(value + uint64(r.lay.funcCode))
		if r.typeOf(value).shape != shapeFunction || !r.isCode(code) {
			return true
		}
		qualified, in := r.text(r.mem.word(value+uint64(r.lay.funcQualName))).s, r.text(r.mem.word(code+uint64(r.lay.fileName))).s
		own := strings.HasSuffix("."+qualified, "."+name+"."+k) && r.text(r.mem.word(code+uint64(r.lay.name))).s == k
		if line := r.firstLine(code); own && in != "" && in[0] != '<' && line > 0 && (first == 0 || line < first) {
			file, first = path.Base(in), line
		}
		return true
	})
	if declared > 0 {
		first = declared
	}
	if file == "" || name == "" {
		return ""
	}
	return fmt.Sprintf(" (class %s, %s:%d)", name, file, first)
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
