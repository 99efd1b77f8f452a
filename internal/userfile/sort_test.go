package userfile

import (
	"strings"
	"testing"
)

func TestSort(t *testing.T) {
	for head, want := range map[string]string{
		"":                                       "empty",
		"\x1f\x8b\x08":                           Gzip,
		"PK\x03\x04...":                          "a zip archive",
		"\x7fELF\x02":                            "a program or a library",
		"\x80\x04\x95":                           "a pickle",
		"<!DOCTYPE html><html>":                  "a web page",
		"{\"a\": 1}":                             "JSON",
		"[1]":                                    "JSON",
		"# Notes\n":                              "text",
		"é":                                      "text",
		strings.Repeat("a", headSize-1) + "\xc3": "text",
		"\x00\x01":                               "data of another sort",
		"a\xff\xff\xff\xff\xff":                  "data of another sort",
	} {
		if got := Sort([]byte(head)); got != want {
			t.Errorf("%q is %q, want %q", head, got, want)
		}
	}
}
