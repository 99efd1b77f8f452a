package probes

import (
	"os"
	"strings"
	"testing"
)

func TestDriverKnown(t *testing.T) {
	for version, want := range map[string]bool{
		"580.159.04": true, "580.142": true, "595.45.04": true, "535.43.02": true, "535.98": true, "550.163.01": true, "590.48.01": true,

		// A release after those that were compared.
		"595.45.05": false, "595.46": false, "595.58.03": false, "590.48.02": false, "580.159.05": false, "580.160": false, "565.77.01": false,

		// Their calls are laid out otherwise, or nobody knows how.
		"530.41.03": false, "525.147.05": false, "520.61.07": false, "515.43.04": false,
		"470.1": false, "470.256.02": false, "390.157": false, "600.1": false, "600.10.02": false, "540.3.0": false, "585.1": false, "58.1": false,

		"": false, ".": false, "..": false, "580": false, "580.": false, ".580": false, "580..04": false, "580.159.04.1": false,
		"0580.1": false, "+580.1": false, "-580.1": false, " 580.1": false, "580.1 ": false, "580.1\n": false, "580.1\x00": false, "580.0x1": false,
		"580.1e4": false, "5٨0.1": false, "580.159.04-open": false, "v580.1": false, "580,1": false, "580.12345": false,
		strings.Repeat("5", 1<<20) + ".1": false, "580." + strings.Repeat("1", 1<<20): false, strings.Repeat(".", 1<<20): false, "9999999999999999999999.1": false,
	} {
		if got := DriverKnown(version); got != want {
			t.Errorf("%.40q: %t, want %t", version, got, want)
		}
	}
}

// What the user is told to use is what is known.
func TestDriverFix(t *testing.T) {
	first, _, _ := strings.Cut(comparedDrivers[0], ".")
	if last := comparedDrivers[len(comparedDrivers)-1]; !strings.Contains(DriverFix, "from "+first+" to "+last) {
		t.Errorf("%q, of %v", DriverFix, comparedDrivers)
	}
	page, err := os.ReadFile("../docs/physical.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, newest := range comparedDrivers {
		if !DriverKnown(newest) || i > 0 && newest <= comparedDrivers[i-1] || !strings.Contains(string(page), newest) {
			t.Errorf("%s is not known, out of order, or not in docs/physical.md", newest)
		}
	}
}

func FuzzDriverKnown(f *testing.F) {
	f.Add("580.159.04")
	f.Fuzz(func(t *testing.T, version string) {
		if DriverKnown(version) && (len(version) < len("535.1") || len(version) > len("580.159.123") || strings.Trim(version, "0123456789.") != "") {
			t.Errorf("%q passes for a version", version)
		}
	})
}
