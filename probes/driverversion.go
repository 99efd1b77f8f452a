package probes

import (
	"slices"
	"strconv"
	"strings"
)

// driverBranches are the branches of NVIDIA's kernel driver with the structures that the kernel side
// reads. Every release of NVIDIA's open-gpu-kernel-modules from 515.43.04 to 595.45.04 was compared: the
// offsets that a C compiler gives the fields, and the numbers of calls and classes. There is one
// difference: before 535 NVOS64_PARAMETERS has 40 bytes, and its status is at 36 (525, 530) or 32 (515,
// 520), that of NVOS21_PARAMETERS is at 24. The sources of earlier branches are not public. Later ones
// may differ.
var driverBranches = []int{535, 545, 550, 555, 560, 565, 570, 575, 580, 590, 595}

// DriverFix is the advice for an unknown driver.
const DriverFix = "use NVIDIA's driver from 535 on; if it is later than 595, use a later gpumemtrace"

// DriverKnown reports whether the tracer can read the calls of the kernel driver of a version such as
// "580.159.04". Another spelling is unknown.
func DriverKnown(version string) bool {
	numbers := strings.Split(version, ".")
	if len(numbers) < 2 || len(numbers) > 3 {
		return false
	}
	for _, n := range numbers {
		if len(n) > 3 || strings.Trim(n, "0123456789") != "" || n == "" {
			return false
		}
	}
	branch, err := strconv.Atoi(numbers[0])
	return err == nil && numbers[0][0] != '0' && slices.Contains(driverBranches, branch)
}
