package timeline

import (
	"os"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/browsertest"
)

func TestMain(m *testing.M) { os.Exit(browsertest.Main(m)) }
