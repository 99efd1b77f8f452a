package alert

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func parsed(t testing.TB, text string) Rule {
	t.Helper()
	r, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"oom":                                 "oom",
		"  oom ":                              "oom",
		"gpu.used > 90%":                      "",
		"gpu.used>=90.5%for 10m":              "gpu.used >= 90.5% for 10m",
		"gpu.free < 2GiB":                     "",
		"gpu.free <= 2 GB":                    "gpu.free <= 2GB",
		"gpu.held > 70%":                      "",
		"residual > 10%":                      "",
		"process.live > 20GiB":                "",
		"process.held > 50% for 1h30m":        "",
		"process.live grows 1GiB in 10m":      "",
		"process.live grows 5% in 90s":        "process.live grows 5% in 1m30s",
		"owner.live grows 512MiB in 24h":      "",
		"owner.live > 0B":                     "",
		"loss > 0":                            "",
		"leak":                                "",
		" leak  for 10m":                      "leak for 10m",
		"leak>1GiB":                           "leak > 1GiB",
		"leak > 100MiB for 5m":                "",
		"loss grows 100 in 1m":                "",
		"process.live > 1152921504606846976B": "",
	} {
		if want == "" {
			want = text
		}
		r := parsed(t, text)
		if r.String() != want {
			t.Errorf("%q is %q, want %q", text, r, want)
		}
	}
}

func TestParseAmounts(t *testing.T) {
	for text, want := range map[string]int64{
		"gpu.used > 90%": 72 << 30, "gpu.used > 0.5KiB": 512, "gpu.used > 2MB": 2_000_000, "gpu.used > 3TiB": 3 << 40, "loss > 7": 7,
	} {
		r := parsed(t, text)
		if got := r.amount(80 << 30); got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
	if r := parsed(t, "process.live grows 1GiB in 1h30m"); r.window != 90*time.Minute || !r.grows {
		t.Errorf("%+v", r)
	}
}

// What is no rule is refused, and the column of what is wrong is told.
func TestParseErrors(t *testing.T) {
	for _, tt := range []struct {
		text   string
		column int
		says   string
	}{
		{"", 1, "gpu.used, gpu.free"},
		{"gpu", 1, "expected gpu.used, gpu.free"},
		{"OOM", 1, "loss or oom"},
		{"oom now", 5, "expected the end of the rule"},
		{"leak now", 6, "expected the end of the rule"},
		{"leak grows 1GiB in 1m", 6, "expected the end of the rule"},
		{"leak < 1GiB", 6, "expected the end of the rule"},
		{"leak > 5%", 9, "leak cannot be given as a percentage"},
		{"leak for ever", 10, "a time"},
		{"gpu.used", 9, "grows"},
		{"gpu.used = 3", 10, "grows"},
		{"gpu.used >> 3B", 10, "grows"},
		{"gpu.used > ", 12, "a number"},
		{"gpu.used > -5B", 12, "a number"},
		{"gpu.used > .5B", 12, "a number"},
		{"gpu.used > 1e9B", 13, "a unit"},
		{"gpu.used > 90", 14, "a unit"},
		{"gpu.used > 90 parsecs", 15, "a unit"},
		{"gpu.used > 90gib", 14, "a unit"},
		{"gpu.used > 101%", 15, "at most 100"},
		{"gpu.used > 99999999TiB", 20, "the amount is too large"},
		{"gpu.used > 1.2.3B", 12, "a number"},
		{"gpu.used > 90% %", 16, "expected the end of the rule"},
		{"gpu.used > 90% for", 19, "a time"},
		{"gpu.used > 90% for 0s", 20, "a time"},
		{"gpu.used > 90% for 169h", 20, "a time"},
		{"gpu.used > 90% for -5m", 20, "a time"},
		{"gpu.used > 90% for 5", 20, "a time"},
		{"gpu.used > 90% for 5m please", 23, "expected the end of the rule"},
		{"process.live grows 1GiB", 24, `"in"`},
		{"process.live grows 0GiB in 1m", 21, "the growth must be more than 0"},
		{"process.live grows in 1m", 20, "a number"},
		{"owner.live > 50%", 16, "owner.live cannot be given as a percentage"},
		{"loss > 1.5", 8, "a whole number"},
		{"loss > 1GiB", 9, "expected the end of the rule"},
		{"gpü.used > 3B", 1, "expected gpu.used"},
		{"gpu.used > 3ü", 13, "a unit"},
		{"gpu.used\t> 3B", 9, "grows"},
		{"gpu.used > 90%\nfor 1m", 15, "expected the end of the rule"},
		{strings.Repeat("x", 1000), 1, "longer than 200 bytes"},
		{"\xff", 1, "not valid UTF-8"},
	} {
		r, err := Parse(tt.text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%q is %q, %v", tt.text, r, err)
			continue
		}
		if syntax.Column != tt.column || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v, want column %d and %q", tt.text, err, tt.column, tt.says)
		}
	}
}

// Whatever is a rule is the same rule as it writes itself, with an amount that there can be.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"oom", "gpu.used > 90% for 10m", "process.live grows 1.5GiB in 10m", "loss >= 3", "owner.live<1KB", "gpu.free < 1 %"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil {
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || syntax.Column < 1 || syntax.Column > len(text)+1 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := Parse(r.String())
		if err != nil || again != r && r.what != nil {
			t.Fatalf("%q is %q, which is %q, %v", text, r, again, err)
		}
		if r.what != nil {
			if n := r.amount(1 << 50); n < 0 || n > maxAmount {
				t.Fatalf("%q is of %d", text, n)
			}
		}
	})
}

// Every rule that docs/agent.md shows is one, and it has every quantity.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Alerts\n")
	_, table, _ := strings.Cut(section, "|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	shown := map[string]bool{}
	for line := range strings.Lines(table) {
		rules := strings.Split(strings.Split(line, "|")[1], "`")
		for i := 1; i < len(rules); i += 2 {
			if r := parsed(t, rules[i]); r.what == nil {
				shown[oom] = true
			} else {
				shown[r.what.name] = true
			}
		}
	}
	if len(shown) != len(quantities)+1 {
		t.Errorf("it shows %d of %d: %v", len(shown), len(quantities)+1, shown)
	}
}
