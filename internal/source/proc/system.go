package proc

import (
	"bytes"
	"fmt"
	"os"
)

// The numbers of the initial namespaces (PROC_*_INIT_INO in
// include/linux/proc_ns.h).
const (
	InitialPID  uint32 = 0xEFFFFFFC
	InitialUser uint32 = 0xEFFFFFFD
)

// Namespace returns the number of the namespace that this process is in, of a
// kind that namespaces(7) knows: "pid", "user".
func Namespace(kind string) (number uint32, err error) {
	name, err := os.Readlink(dirOf(os.Getpid()) + "/ns/" + kind)
	if err != nil {
		return 0, fmt.Errorf("find the %s namespace: %w", kind, err)
	}
	if _, err := fmt.Sscanf(name, kind+":[%d]", &number); err != nil {
		return 0, fmt.Errorf("find the %s namespace in %q: %w", kind, name, err)
	}
	return number, nil
}

// InitialPIDNamespace reports whether this process is in the initial PID namespace, where
// every process is seen, by the pid that drivers know it by.
func InitialPIDNamespace() bool {
	number, err := Namespace("pid")
	return err == nil && number == InitialPID
}

// Sysctl returns the first line of a parameter of the kernel's, named as below
// /proc/sys: "kernel/perf_event_paranoid". It is "" where there is none.
func Sysctl(name string) string {
	b, _ := os.ReadFile("/proc/sys/" + name)
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return string(line)
}

// DriverVersion returns the version of NVIDIA's kernel driver, such as
// "580.159.04", or "" where it is not loaded or does not say.
func DriverVersion() string {
	b, _ := os.ReadFile("/proc/driver/nvidia/version")
	return parseDriverVersion(b)
}

// DriverLoaded reports whether NVIDIA's kernel driver is loaded, or /proc does not show it.
func DriverLoaded() bool {
	b, err := os.ReadFile("/proc/devices")
	return err != nil || listsDriver(b)
}

// listsDriver reports whether /proc/devices names the driver's character devices: "195 nvidia" or,
// in some releases, "195 nvidia-frontend" or "195 nvidiactl".
func listsDriver(devices []byte) bool {
	for line := range bytes.Lines(devices) {
		if bytes.HasPrefix(bytes.TrimLeft(line, " "), []byte("195 nvidia")) {
			return true
		}
	}
	return false
}

// parseDriverVersion finds the first number with dots in the line of the module:
// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build ...".
func parseDriverVersion(b []byte) string {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	module, ok := bytes.CutPrefix(line, []byte("NVRM version:"))
	if !ok {
		return ""
	}
	for word := range bytes.FieldsSeq(module) {
		if bytes.Contains(word, []byte(".")) && len(bytes.Trim(word, "0123456789.")) == 0 {
			return string(word)
		}
	}
	return ""
}
