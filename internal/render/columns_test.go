package render_test

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

// Plain text fills the same number of columns however a terminal counts them.
func FuzzPlain(f *testing.F) {
	for _, s := range livetest.HostileNames {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, s string, n int) {
		got := render.Plain(s)
		if n < 0 || n > 10_000 {
			n = 80
		}
		for _, x := range []string{render.Fit(got, n, false), render.Fit(got, n, true)} {
			if a, b, c := ansi.StringWidth(x), ansi.StringWidthWc(x), render.Width(x); a != n || b != n || c != n {
				t.Errorf("%q in %d columns takes %d, %d or %d", x, n, a, b, c)
			}
		}
		if strings.ContainsFunc(got, render.Unsafe) || render.Plain(got) != got && len(got) < 1000 {
			t.Errorf("render.Plain(%q) = %q, then %q", s, got, render.Plain(got))
		}
	})
}

func TestShortenStack(t *testing.T) {
	const stack = "Conv1D.forward pytorch_utils.py:119 < main.<locals>.step torch_profiled.py:91 < main"
	for n, want := range map[int]string{
		100: stack,
		80:  "Conv1D.forward pytorch_utils.py:119 < main.<locals>.step torch_profiled.py:91",
		60:  "Conv1D.forward pytorch_utils.py:119 < torch_profiled.py:91",
		42:  "Conv1D.forward pytorch_utils.py:119 < …",
		30:  "Conv1D.f… pytorch_utils.py:119",
		10:  "Conv1D.fo…",
	} {
		got := render.ShortenStack(stack, n)
		if render.Width(got) > n {
			t.Errorf("%d columns: %q has %d", n, got, render.Width(got))
		}
		if got != want {
			t.Errorf("%d columns: %q, want %q", n, got, want)
		}
	}
}
