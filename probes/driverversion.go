package probes

import (
	"slices"
	"strconv"
	"strings"
)

// driverBranches are the branches of NVIDIA's kernel driver whose calls are laid
// out as the kernel side reads them. Every release of NVIDIA's
// open-gpu-kernel-modules was compared, 515.43.04 to 595.45.04: the offsets that
// a C compiler gives to the fields that are read, the numbers of the calls, and
// those of the classes. They differ in one place: before 535 NVOS64_PARAMETERS
// has 40 bytes, and its status is at 36 (525, 530) or 32 (515, 520); that of
// NVOS21_PARAMETERS is at 24. The sources of earlier branches are not public, a
// later one may differ.
var driverBranches = []int{535, 545, 550, 555, 560, 565, 570, 575, 580, 590, 595}

// DriverFix says what to do about a driver that is not known.
const DriverFix = "use a driver of NVIDIA's from 535 on; with one later than 595, a later gpumemtrace"

// DriverKnown tells whether version, such as "580.159.04", is of a kernel driver
// whose calls can be read. A version that is spelled otherwise is not.
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
