package main

import "github.com/gpumemtrace/gpumemtrace/internal/bytefmt"

// A size is a number of bytes: a pflag.Value.
type size int64

func (n size) String() string {
	if n == 0 {
		return ""
	}
	return bytefmt.Format(int64(n))
}

// Type names the value in help texts.
func (*size) Type() string { return "size" }

// Set parses a whole number of bytes, KiB, MiB, GiB or TiB.
func (n *size) Set(s string) error {
	v, err := bytefmt.Parse(s)
	if err != nil {
		return err
	}
	*n = size(v)
	return nil
}
