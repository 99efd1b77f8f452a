// Package torchtest is for tests that need PyTorch.
package torchtest

import (
	"os"
	"os/exec"
	"testing"
)

// Python is Debian's interpreter, which Debian's PyTorch is for.
const Python = "/usr/bin/python3"

// Need skips a test where there is no PyTorch, or fails it when the environment says
// CI=true. It does not import PyTorch, which takes a second.
func Need(tb testing.TB) {
	tb.Helper()
	const find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
	if err := exec.Command(Python, "-c", find).Run(); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		tb.Fatal("no PyTorch for ", Python)
	}
	tb.Skip("no PyTorch for ", Python)
}
