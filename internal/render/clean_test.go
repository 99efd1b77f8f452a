package render

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "",
		"torch::autograd::Engine":       "torch::autograd::Engine",
		"größe 模型 �":                    "größe 模型 �",
		"\x1b[2Jgone":                   `\x1b[2Jgone`,
		"a\nb\tc\rd\x00e\x7f":           `a\x0ab\x09c\x0dd\x00e\x7f`,
		"bad\xff\xfe":                   `bad\xff\xfe`,
		"csi\u009b31m":                  `csi\u{009b}31m`,
		"rtl\u202egnp.exe":              `rtl\u{202e}gnp.exe`,
		"zero\u200bwidth\u2028nextln":   `zero\u{200b}width\u{2028}nextln`,
		"tag\U000e0041":                 `tag\u{e0041}`,
		"like\u00a0a\u3000space":        `like\u{00a0}a\u{3000}space`,
		"private\ue000, none\U000fffff": `private\u{e000}, none\u{fffff}`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("python3")
	f.Add("\x1b]0;x\a")
	f.Fuzz(func(t *testing.T, s string) {
		got := Clean(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, Unsafe) {
			t.Errorf("Clean(%q) = %q is not safe", s, got)
		}
		if again := Clean(got); again != got {
			t.Errorf("Clean is not stable: %q, then %q", got, again)
		}
	})
}

func TestCut(t *testing.T) {
	const most = 200
	for _, s := range []string{"", "a", strings.Repeat("a", most), strings.Repeat("a", most+1), strings.Repeat("ü", most), strings.Repeat("\xff", 70), "x" + strings.Repeat("€", 67), strings.Repeat("\u202e", 40)} {
		got := Cut(s, most)
		if len(got) > most || !utf8.ValidString(got) {
			t.Errorf("%d bytes of %d: %q", len(got), len(s), got)
		}
		if len(s) <= most/12 && got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	if a, b := Cut(strings.Repeat("a", most), most), Cut(strings.Repeat("a", most+1), most); a == b || !strings.HasSuffix(b, "…") {
		t.Errorf("it does not show that %q was cut", b)
	}
}
