package proc

import (
	"bytes"
	"os"
)

// Sysctl returns the first line of a parameter of the kernel's, named as below
// /proc/sys: "kernel/perf_event_paranoid". It is "" where there is none.
func Sysctl(name string) string {
	b, _ := os.ReadFile("/proc/sys/" + name)
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return string(line)
}
