// Package systemd tests the unit that is beside it.
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/confine"
)

const unit = "gpumemtrace.service"

// settings returns the values of a unit's setting, in order.
func settings(t *testing.T, name string) (values []string) {
	t.Helper()
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			values = append(values, value)
		}
	}
	return values
}

func analyze(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-analyze %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// systemd takes less than 5.0 for well confined, and 10 for not at all. Root that may
// see every process has 3.1 here.
func TestExposure(t *testing.T) {
	analyze(t, "security", "--offline=yes", "--threshold=32", unit)
}

// The unit is read without a complaint, but for the program that is not installed.
func TestUnit(t *testing.T) {
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), unit)
	text = []byte(strings.ReplaceAll(string(text), "/usr/bin/gpumemtrace ", "/bin/true "))
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if said := analyze(t, "verify", "--man=no", path); said != "" {
		t.Error(said)
	}
	if got := settings(t, "Type"); !slices.Equal(got, []string{"notify"}) {
		t.Errorf("Type=%q: the agent says when it is ready", got)
	}
	if len(settings(t, "WatchdogSec")) != 1 {
		t.Error("no watchdog")
	}
}

// It has the capabilities that tracing needs, on some kernels CAP_SYS_ADMIN among them,
// and no other.
func TestCapabilities(t *testing.T) {
	numbers := map[string]int{
		"CAP_BPF": unix.CAP_BPF, "CAP_PERFMON": unix.CAP_PERFMON, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE,
		"CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH, "CAP_CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
		"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN,
	}
	var got []int
	for name := range strings.FieldsSeq(strings.Join(settings(t, "CapabilityBoundingSet"), " ")) {
		number, ok := numbers[name]
		if !ok {
			t.Errorf("%s is not needed", name)
		}
		got = append(got, number)
	}
	needed, err := confine.Needed()
	if err != nil {
		t.Fatal(err)
	}
	want := append(slices.Clone(needed), unix.CAP_SYS_ADMIN)
	slices.Sort(got)
	slices.Sort(want)
	want = slices.Compact(want)
	if !slices.Equal(got, want) {
		t.Errorf("capabilities %d, want %d", got, want)
	}
}

// What tracing, serving and pushing call is let through.
func TestSystemCalls(t *testing.T) {
	allowed := map[string]bool{}
	for _, line := range settings(t, "SystemCallFilter") {
		list, deny := strings.CutPrefix(line, "~")
		for name := range strings.FieldsSeq(list) {
			expand(t, name, func(call string) { allowed[call] = !deny })
		}
	}
	for _, call := range []string{
		"bpf", "perf_event_open", "ioctl", "mmap", "mprotect", "epoll_pwait", "readlinkat", "newfstatat", "pread64", "clone3",
		"process_vm_readv", "pidfd_open", "futex", "openat", "getdents64", "renameat", "unlinkat", "fsync", "statfs", "fstatfs",
		"socket", "bind", "listen", "accept4", "connect", "fchmod", "fchmodat", "chown", "fchownat", "getsockname", "setsockopt", "sendto", "recvfrom", "sendmsg", "capget", "capset", "prctl", "execve",
	} {
		if !allowed[call] {
			t.Errorf("%s is refused", call)
		}
	}
	for _, call := range []string{"mount", "init_module", "kexec_load", "reboot", "ptrace", "setuid", "keyctl", "swapon"} {
		if allowed[call] {
			t.Errorf("%s is let through", call)
		}
	}
}

// expand visits the calls of a set, or the one call.
func expand(t *testing.T, name string, visit func(string)) {
	t.Helper()
	if !strings.HasPrefix(name, "@") {
		visit(name)
		return
	}
	_, list, _ := strings.Cut(analyze(t, "syscall-filter", name), "\n")
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			expand(t, line, visit)
		}
	}
}

// The settings are plain values by the names of flags, and lead where the unit lets
// the agent write.
func TestSettings(t *testing.T) {
	text, err := os.ReadFile("agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Also as it is with what is commented out: "#name: value".
	for _, text := range []string{string(text), regexp.MustCompile(`(?m)^#(\w)`).ReplaceAllString(string(text), "$1")} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(values) < 3 || values["record"] == "" {
			t.Errorf("%v", values)
		}
		for name, value := range values {
			if path, _ := value.(string); strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "/var/lib/gpumemtrace/") && name != "web-config" {
				t.Errorf("%s: %s is not in the unit's state directory", name, path)
			}
		}
	}
	for _, name := range []string{"RuntimeDirectory", "StateDirectory", "CacheDirectory", "ConfigurationDirectory"} {
		if got := settings(t, name); !slices.Equal(got, []string{"gpumemtrace"}) {
			t.Errorf("%s=%q", name, got)
		}
	}
	if score := settings(t, "OOMScoreAdjust"); len(score) != 1 {
		t.Error("nothing says who goes first where memory runs out")
	} else if n, err := strconv.Atoi(score[0]); err != nil || n <= 0 {
		t.Errorf("OOMScoreAdjust=%s: a traced program would go before the tracer", score[0])
	}
}
