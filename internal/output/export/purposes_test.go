package export

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// A sentence names the largest parts. What is left of the sum is among the others.
func TestListed(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		parts map[string]int64
		most  int
		want  string
	}{
		{nil, 9, ""},
		{map[string]int64{"activation": 1100 * mib, "gradient": 512}, 9, "activation 1.07 GiB, others 512 B"},
		{map[string]int64{"a": 5000 * mib, "b": 4 * mib, "c": 3 * mib}, 9, "a 4.88 GiB, others 7.00 MiB"}, // below a thousandth
		{map[string]int64{"a": 5 * mib, "b": 2 * mib, "c": mib}, 9, "a 5.00 MiB, b 2.00 MiB, c 1.00 MiB"},
		{map[string]int64{"a": 5 * mib, "b": 2 * mib, "c": mib}, 1, "a 5.00 MiB, others 3.00 MiB"},
		{map[string]int64{"a": 700, "b": 0, "c": 1}, 9, "a 700 B, c 1 B"}, // all are small
		{map[string]int64{"a": 5 * mib, "elsewhere": -2 * mib}, 9, "a 5.00 MiB, elsewhere -2.00 MiB"},
	} {
		got := strings.Join(listed(c.parts, c.most, func(name string) string { return name + " " + bytefmt.Format(c.parts[name]) }), ", ")
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.parts, got, c.want)
		}
	}
}

// Both sentences of the first screen have parts that add up to the sum that they give.
func TestPurposesAddUp(t *testing.T) {
	inBytes := func(text string) float64 {
		n, err := bytefmt.Parse(strings.ReplaceAll(text, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return float64(n)
	}
	const size = `([0-9.]+ [KMGT]?i?B)`
	sum := regexp.MustCompile(size + "(?:, as nvidia-smi says)?$")
	for _, recording := range []string{"accelerate", "driver_api", "fsdp", "ipc", "jax", "nccl", "out_of_memory", "pools", "profiler", "torch_expandable", "torch_native", "video"} {
		s := recorded(t, recording)
		s.Meta.Peaks = s.Ended()
		page := report(t, s, Options{Width: 4000})
		_, page, _ = strings.Cut(page, "What for\n")
		lines := strings.Split(page, "\n")
		parts, all, _ := strings.Cut(strings.TrimSpace(lines[0]), ": ")
		check := func(parts string, all float64) {
			t.Helper()
			var added float64
			for part := range strings.SplitSeq(parts, "; ") {
				part, _, _ = strings.Cut(part, ", ")
				if !regexp.MustCompile(size + "$").MatchString(part) {
					t.Fatalf("%s: no size in %q of %q", recording, part, parts)
				}
				added += inBytes(regexp.MustCompile(size + "$").FindString(part))
			}
			if d := added - all; d > all/20 || d < -all/20 { // each is rounded
				t.Errorf("%s: %s adds up to %s, want %s", recording, parts, bytefmt.Format(int64(added)), bytefmt.Format(int64(all)))
			}
		}
		check(parts, inBytes(sum.FindStringSubmatch(all)[1]))
		if m := regexp.MustCompile(`shows the other ` + size + ` too: (.*)\.$`).FindStringSubmatch(lines[1]); m != nil {
			check(m[2], inBytes(m[1]))
		} else if strings.Contains(parts, "PyTorch") {
			t.Errorf("%s: no second sentence in %s", recording, fmt.Sprint(lines[:2]))
		}
	}
}
