package render

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

func TestClass(t *testing.T) {
	for k := range event.NumKinds {
		if got, want := Class(k.String()), k.Class().String(); got != want {
			t.Errorf("Class(%q) = %q, want %q", k, got, want)
		}
	}
}
