package tensors

import (
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// Each cause of loss has a name of its own, those of Rows too.
func TestLossNames(t *testing.T) {
	var names []string
	for _, c := range New(ledger.Options{}).Loss() {
		if slices.Contains(names, c.Name) {
			t.Errorf("two causes are named %s", c.Name)
		}
		names = append(names, c.Name)
	}
}
