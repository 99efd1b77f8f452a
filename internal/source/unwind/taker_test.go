package unwind

import (
	"errors"
	"strings"
	"testing"
)

// A memo that could not be loaded is not claimed.
func TestUnwoundHow(t *testing.T) {
	if mode, warning := unwoundHow(false, nil); mode != "unwound, verified memo" || warning != "" {
		t.Errorf("%q, %q", mode, warning)
	}
	if mode, warning := unwoundHow(true, nil); strings.Contains(mode, "memo") || warning != "" {
		t.Errorf("without a memo: %q, %q", mode, warning)
	}
	mode, warning := unwoundHow(false, errors.New("too many instructions"))
	if strings.Contains(mode, "verified") || !strings.Contains(warning, "too many instructions") {
		t.Errorf("with one that cannot run: %q, %q", mode, warning)
	}
}
