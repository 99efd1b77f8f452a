package physical

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// Each cause of loss has a name of its own, those of Rows too.
func TestLossNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range New(ledger.Options{}).Loss() {
		if seen[c.Name] {
			t.Errorf("two causes are named %s", c.Name)
		}
		seen[c.Name] = true
	}
}
