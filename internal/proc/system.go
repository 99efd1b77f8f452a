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

// InitialPIDNamespace tells whether this process is in the initial PID namespace, where
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
