package userfile

import (
	"bytes"
	"unicode/utf8"
)

// headSize is how much of a file Sort looks at, in bytes.
const headSize = 512

// sorts are the files that people take for another, by how they begin.
var sorts = []struct{ begin, name string }{
	{"\x1f\x8b", Gzip},
	{"PK\x03\x04", "a zip archive"},
	{"\x7fELF", "a program or a library"},
	{"\x80", "a pickle"},
	{"<!DOCTYPE html", "a web page"},
	{"<html", "a web page"},
	{"{", "JSON"},
	{"[", "JSON"},
}

// The sorts of which a profile may be.
const (
	Gzip  = "compressed with gzip, as profiles are"
	Other = "data of another sort"
)

// Sort says what a file is that begins with head.
func Sort(head []byte) string {
	head = head[:min(len(head), headSize)]
	if len(head) == 0 {
		return "empty"
	}
	for _, s := range sorts {
		n := len(s.begin)
		if bytes.HasPrefix(head, []byte(s.begin)) || s.begin[0] == '<' && len(head) >= n && bytes.EqualFold(head[:n], []byte(s.begin)) {
			return s.name
		}
	}
	for range utf8.UTFMax - 1 { // the end may be inside a character
		if len(head) > 1 && !utf8.Valid(head) {
			head = head[:len(head)-1]
		}
	}
	if utf8.Valid(head) && !bytes.ContainsRune(head, 0) {
		return "text"
	}
	return Other
}
