package heap

import (
	"strconv"
	"unicode/utf8"
)

// A text is what a key of a dictionary says.
type text struct {
	s    string
	kind textKind
}

type textKind uint8

const (
	noText textKind = iota
	textStr
	textInt
	textLong   // a str that is not shown, for its length
	textObject // neither
	unread
)

// maxText bounds a str that is read: names of attributes are shorter.
const maxText = 200

// text returns what a str or an int says.
func (r *objectReader) text(address uint64) text {
	b := r.mem.bytes(address, 40)
	if b == nil {
		return text{}
	}
	length, state := word(b[16:]), uint32(word(b[32:]))
	t := r.typeAt(word(b[8:]))
	if t == noType {
		return text{}
	}
	flags := r.classes[t].flags
	switch {
	case flags&flagStr != 0:
		return r.str(address, length, state)
	case flags&flagLong != 0:
		return r.number(address)
	}
	return text{shortName(r.classes[t].name), textObject}
}

func (r *objectReader) str(address, length uint64, state uint32) text {
	kind, compact, ascii := state>>2&7, state>>5&1, state>>6&1
	if compact == 0 || kind != 1 && kind != 2 && kind != 4 {
		return text{}
	}
	if length > maxText {
		return text{kind: textLong}
	}
	at := address + uint64(r.lay.unicodeSize)
	if ascii == 1 {
		at = address + uint64(r.lay.asciiSize)
	}
	b := r.mem.bytes(at, int(length)*int(kind))
	if b == nil && length > 0 {
		return text{}
	}
	if ascii == 1 {
		return text{string(b), textStr}
	}
	var out []byte
	for i := 0; i < len(b); i += int(kind) {
		var c rune
		for j := range int(kind) {
			c |= rune(b[i+j]) << (8 * j)
		}
		out = utf8.AppendRune(out, c)
	}
	return text{string(out), textStr}
}

// number returns an int of at most two digits of 30 bits.
func (r *objectReader) number(address uint64) text {
	size := int64(r.mem.word(address + 16))
	digits, negative := size, size < 0
	if r.lay.minor >= 12 {
		digits, negative = size>>3, size&3 == 2
	} else if negative {
		digits = -digits
	}
	if digits == 0 || r.lay.minor >= 12 && size&3 == 1 {
		return text{"0", textInt}
	}
	if digits < 0 || digits > 2 {
		return text{"int", textObject}
	}
	w := r.mem.word(address + 24)
	n := int64(w & (1<<30 - 1))
	if digits == 2 {
		n |= int64(w>>32&(1<<30-1)) << 30
	}
	if negative {
		n = -n
	}
	return text{strconv.FormatInt(n, 10), textInt}
}

// identifier tells whether a text may be the name of an attribute.
func identifier(s string) bool {
	for i, c := range s {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// maxKey bounds a key that is shown: longer ones may be secrets.
const maxKey = 48

// plain tells whether a key may be shown that is no identifier.
func plain(s string) bool {
	if len(s) > maxKey {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '.' && c != '_' && c != '-' && c != ' ' && c != '/' && c != ':' {
			return false
		}
	}
	return s != ""
}
