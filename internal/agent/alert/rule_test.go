package alert

import (
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
		"oom":                          "",
		"  oom ":                       "oom",
		"leak":                         "",
		"gpu.used > 90%":               "",
		"gpu.used>90.5%for 10m":        "gpu.used > 90.5% for 10m",
		"gpu.used > 2 GiB":             "gpu.used > 2GiB",
		"process.live > 20GiB":         "",
		"process.held > 50% for 1h30m": "",
	} {
		if want == "" {
			want = text
		}
		if r := parsed(t, text); r.String() != want {
			t.Errorf("%q is %q, want %q", text, r, want)
		}
	}
	for text, want := range map[string]int64{"gpu.used > 90%": 72 << 30, "gpu.used > 0.5KiB": 512, "gpu.used > 3TiB": 3 << 40} {
		r := parsed(t, text)
		if got := r.limit(80 << 30); got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
	if r := parsed(t, "process.live > 1GiB for 1h30m"); r.window != 90*time.Minute {
		t.Errorf("%+v", r)
	}
}

// What is no rule is refused, with what would be one.
func TestParseErrors(t *testing.T) {
	const forms = `give oom, leak, or a limit such as "gpu.used > 90%"`
	for text, says := range map[string]string{
		"": forms, "gpu": forms, "OOM": forms, "oom now": forms, "leak > 1GiB": "leak is none of gpu.used,", "gpu.used": forms,
		"gpu.used < 3GiB": forms, "gpu.used >> 3GiB": forms, "gpu.used > ": forms, "gpu.used > -5GiB": forms, "gpu.used > 90": forms,
		"gpu.free > 3GiB": "gpu.free is none of gpu.used, process.live and process.held", "gpu.used > 90 parsecs": "90parsecs: give a size",
		"gpu.used > 101%": "no percentage", "gpu.used > 0%": "no percentage", "gpu.used > 1.2.3%": "no percentage", "gpu.used > 99999999TiB": "give a size",
		"gpu.used > 1.2.3GiB": "give a size", "gpu.used > 90% for": forms, "gpu.used > 90% for 0s": "no time", "gpu.used > 90% for 169h": "no time",
		"gpu.used > 90% for 5": "no time", "gpu.used > 90% for 5m please": forms, "gpu.used\t> 3GiB": forms, "gpu.used > 90%\nfor 1m": forms,
		"process.live grows 1GiB in 10m": forms, strings.Repeat("x", 1000): forms, "\xff": forms,
	} {
		r, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), says) || len(err.Error()) > 2*maxRule+200 {
			t.Errorf("%q is %q, %v, want %q", text, r, err, says)
		}
	}
}

// Whatever is a rule is the same rule as it writes itself, with a limit that there can be.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"oom", "leak", "gpu.used > 90% for 10m", "process.live > 1.5GiB", "process.held>1 %"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(r.String())
		if err != nil || again != r {
			t.Fatalf("%q is %q, which is %q, %v", text, r, again, err)
		}
		if r.what != nil && r.limit(1<<50) < 0 {
			t.Fatalf("%q has the limit %d", text, r.limit(1<<50))
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
	shown := map[*quantity]bool{}
	for line := range strings.Lines(table) {
		rules := strings.Split(strings.Split(line, "|")[1], "`")
		for i := 1; i < len(rules); i += 2 {
			shown[parsed(t, rules[i]).what] = true
		}
	}
	if len(shown) != len(quantities)+1 {
		t.Errorf("it shows %d of %d", len(shown), len(quantities)+1)
	}
}
