// Package web has what this program's pages share: how they look, what draws them, and how
// stacks travel to them. A page needs nothing else, and no network.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"sync"
)

//go:embed *.js style.css icon.svg uplot/uPlot.iife.min.js.gz uplot/uPlot.min.css uplot/LICENSE
var assets embed.FS

// chartLibrary returns uPlot. It is compressed in the program, which must stay small.
var chartLibrary = sync.OnceValue(func() string {
	r, err := gzip.NewReader(bytes.NewReader([]byte(Asset(assets, "uplot/uPlot.iife.min.js.gz"))))
	if err != nil {
		panic(err) // it is embedded
	}
	var b strings.Builder
	if _, err := io.Copy(&b, r); err != nil {
		panic(err)
	}
	return b.String()
})

// scripts are in the order in which they need each other.
var scripts = []string{"format.js", "touch.js", "model.js", "group.js", "chart.js", "flame.js"}

// Asset returns an embedded file.
func Asset(files embed.FS, name string) string {
	b, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(b)
}

// Script returns all that a page runs: uPlot with its licence, what is shared, and the
// page's own, which see what is shared.
func Script(own ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "/*\n%s*/\n%s\n(() => {\n\"use strict\";\n", Asset(assets, "uplot/LICENSE"), chartLibrary())
	for _, name := range scripts {
		b.WriteString(Asset(assets, name))
	}
	for _, text := range own {
		b.WriteString(text)
	}
	b.WriteString("})();\n")
	return b.String()
}

// Style returns how pages look.
func Style() string { return Asset(assets, "uplot/uPlot.min.css") + Asset(assets, "style.css") }

// Icon returns the icon of a page that may load images of data: addresses.
func Icon() string {
	return `<link rel="icon" href="data:image/svg+xml;base64,` + base64.StdEncoding.EncodeToString([]byte(Asset(assets, "icon.svg"))) + `">`
}

// Source returns how a Content-Security-Policy names an inline script or style.
func Source(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
