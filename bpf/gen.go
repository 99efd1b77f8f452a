// Package bpf has the kernel side: the C sources, and the Go files and objects that bpf2go makes of them.
// The objects are committed, so that a build needs no clang. The C sources and objects are GPL-2.0 (see
// LICENSE here). The rest of the module embeds the objects as data.
package bpf

import (
	"bytes"
	"compress/gzip"
	"io"
)

//go:generate sh generate.sh

// unpacked returns an embedded object.
func unpacked(object []byte) *bytes.Reader {
	z, err := gzip.NewReader(bytes.NewReader(object))
	if err != nil {
		panic(err) // it is embedded
	}
	b, err := io.ReadAll(z)
	if err != nil {
		panic(err)
	}
	return bytes.NewReader(b)
}
