package probes

import (
	"strconv"
	"strings"
)

// comparedDrivers are, by branch of NVIDIA's kernel driver, the newest release with the structures that
// the kernel side reads. Every published release of NVIDIA's open-gpu-kernel-modules from 515.43.04 on was
// compared up to it: the offsets that a C compiler gives the fields, and the numbers of calls and classes.
// 580.159.04 is not published there: on GPUs with it the sums equalled NVML's figures. There is one
// difference: before 535 NVOS64_PARAMETERS has 40 bytes, and its status is at 36 (525, 530) or 32 (515,
// 520), that of NVOS21_PARAMETERS is at 24. The sources of earlier branches are not public. Later
// releases may differ.
var comparedDrivers = []string{
	"535.288.01", "545.29.06", "550.163.01", "555.58.02", "560.35.03", "565.77", "570.211.01", "575.64.05",
	"580.159.04", "590.48.01", "595.45.04",
}

// DriverFix is the advice for an unknown driver.
const DriverFix = "use a release of NVIDIA's driver from 535 to 595.45.04 that docs/physical.md lists, or a later gpumemtrace"

// DriverKnown reports whether the tracer can read the calls of the kernel driver of a version such as
// "580.159.04". Another spelling is unknown, and so is a release after the newest compared one of its branch.
func DriverKnown(version string) bool {
	release, ok := parseDriver(version)
	if !ok {
		return false
	}
	for _, newest := range comparedDrivers {
		if last, _ := parseDriver(newest); release[0] == last[0] {
			return release[1] < last[1] || release[1] == last[1] && release[2] <= last[2]
		}
	}
	return false
}

// parseDriver returns the two or three numbers of a version, of three digits at most each.
func parseDriver(version string) (numbers [3]int, ok bool) {
	if len(version) > len("580.159.123") {
		return numbers, false
	}
	words := strings.Split(version, ".")
	if len(words) < 2 || len(words) > len(numbers) || strings.HasPrefix(version, "0") {
		return numbers, false
	}
	for i, w := range words {
		if len(w) > 3 || strings.Trim(w, "0123456789") != "" || w == "" {
			return numbers, false
		}
		numbers[i], _ = strconv.Atoi(w)
	}
	return numbers, true
}
