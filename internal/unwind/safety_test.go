package unwind

import (
	"context"
	"testing"
)

// The verifier gives up after a million instructions. It walks fewer on some
// kernels and more on others: keep away from the limit.
func TestVerifierLimit(t *testing.T) {
	u, err := Start(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	info, err := u.kernel.exit.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, ok := info.VerifiedInstructions()
	if !ok {
		t.Skip("kernel does not tell (before 5.16)")
	}
	t.Logf("%s: %d", exitProgram, n)
	if n > 500_000 {
		t.Errorf("%s takes the verifier %d instructions", exitProgram, n)
	}
}
