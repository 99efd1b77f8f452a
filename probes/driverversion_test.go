package probes

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestDriverKnown(t *testing.T) {
	for version, want := range map[string]bool{
		"580.159.04": true, "580.142": true, "595.45.04": true, "535.43.02": true, "535.98": true, "550.163.01": true, "590.48.01": true,

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
	first, last := strconv.Itoa(driverBranches[0]), strconv.Itoa(driverBranches[len(driverBranches)-1])
	if !slices.IsSorted(driverBranches) || !strings.Contains(DriverFix, "from "+first+" on") || !strings.Contains(DriverFix, "later than "+last) {
		t.Errorf("%q, of %v", DriverFix, driverBranches)
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
