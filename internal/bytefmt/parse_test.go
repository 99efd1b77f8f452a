package bytefmt

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "1023": 1023, "1KiB": 1 << 10, "512 MiB": 512 << 20, "3GiB": 3 << 30, "7TiB": 7 << 40,
		"": 0, "0": 0, "-1": 0, "1.5GiB": 3 << 29, "0.5KiB": 512, "1.5": 0, "1e3KiB": 0, "0.0001KiB": 0, "NaNKiB": 0, "-1.5GiB": 0, "9e18TiB": 0, "1GB": 0, "MiB": 0, "9999999999GiB": 0, "1KiB MiB": 0, "1B": 0,
	} {
		got, err := Parse(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("Parse(%q) = %d, %v, want %d", text, got, err, want)
		}
		if err != nil {
			continue
		}
		if again, err := Parse(Exact(got)); err != nil || again != got {
			t.Errorf("Exact(%d) = %q, which is %d, %v", got, Exact(got), again, err)
		}
	}
}
