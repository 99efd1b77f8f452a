//go:build !cgo

package gpu

import (
	"errors"
	"testing"
)

func TestNoCgo(t *testing.T) {
	if n, err := Open(); n != nil || !errors.Is(err, ErrNoCgo) {
		t.Errorf("%v, %v", n, err)
	}
}
