package gpu

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// procFS is a /proc. What it says of a process is that process's choice, so
// reads are bounded and nothing is opened by a name found there.
type procFS string

const (
	maxEnviron = 4 << 20 // bytes; the kernel allows a quarter of the stack limit
	maxMinor   = 1024

	// initialPIDNamespace is PROC_PID_INIT_INO (include/linux/proc_ns.h).
	initialPIDNamespace = "pid:[4026531836]"
	// nvidiaMajor is the device major of /dev/nvidiaN (devices.txt).
	nvidiaMajor = 195
)

func (p procFS) path(pid int, elem ...string) string {
	return filepath.Join(append([]string{string(p), strconv.Itoa(pid)}, elem...)...)
}

func (p procFS) initialNamespace() bool {
	l, err := os.Readlink(filepath.Join(string(p), "self/ns/pid"))
	return err == nil && l == initialPIDNamespace
}

// read returns at most limit bytes; more is an error.
func (p procFS) read(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = errors.New("larger than expected: " + path)
	}
	return b, err
}

// name is pid's comm, "" when there is none.
func (p procFS) name(pid int) string {
	b, err := p.read(p.path(pid, "comm"), 64)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

// opened lists the minors of the /dev/nvidiaN that pid has open, ascending.
func (p procFS) opened(pid int) ([]int, error) {
	files, err := os.ReadDir(p.path(pid, "fd"))
	if err != nil {
		return nil, err
	}
	var minors []int
	for _, f := range files {
		target, err := os.Readlink(p.path(pid, "fd", f.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		if minor, ok := deviceFile(target); ok && !slices.Contains(minors, minor) {
			minors = append(minors, minor)
		}
	}
	slices.Sort(minors)
	return minors, nil
}

// deviceFile returns N of a path /dev/nvidiaN.
func deviceFile(path string) (minor int, ok bool) {
	s, ok := strings.CutPrefix(path, "/dev/nvidia")
	if !ok || s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	minor, err := strconv.Atoi(s)
	return minor, err == nil && minor < maxMinor
}

func (p procFS) holds(pid, minor int) bool {
	minors, err := p.opened(pid)
	return err == nil && minor >= 0 && slices.Contains(minors, minor)
}

// holders lists the processes here that have /dev/nvidia<minor> open. nil when
// not all processes could be read.
func (p procFS) holders(minor int) []int {
	entries, err := os.ReadDir(string(p))
	if err != nil || minor < 0 {
		return nil
	}
	self := os.Getpid() // NVML has opened the device for us
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == self {
			continue
		}
		switch minors, err := p.opened(pid); {
		case err == nil:
			if slices.Contains(minors, minor) {
				pids = append(pids, pid)
			}
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		default:
			return nil
		}
	}
	slices.Sort(pids)
	return pids
}

// nodes lists the minors of the device files in pid's own /dev, which in a
// container are fewer than the machine's.
func (p procFS) nodes(pid int) ([]int, error) {
	dir := p.path(pid, "root/dev")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var minors []int
	for _, e := range entries {
		minor, ok := deviceFile("/dev/" + e.Name())
		if !ok {
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, e.Name()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR ||
			unix.Major(st.Rdev) != nvidiaMajor || int(unix.Minor(st.Rdev)) != minor {
			continue
		}
		minors = append(minors, minor)
	}
	slices.Sort(minors)
	return minors, nil
}

// env reads the variables that order and hide GPUs, as pid was started with.
func (p procFS) env(pid int) (Env, error) {
	b, err := p.read(p.path(pid, "environ"), maxEnviron)
	if err != nil {
		return Env{}, err
	}
	return parseEnviron(b), nil
}

// parseEnviron takes the first of several equal names, as getenv does.
func parseEnviron(b []byte) Env {
	var e Env
	var ordered bool
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte("CUDA_VISIBLE_DEVICES=")); ok && !e.VisibleSet {
			e.Visible, e.VisibleSet = string(v), true
		}
		if v, ok := bytes.CutPrefix(kv, []byte("CUDA_DEVICE_ORDER=")); ok && !ordered {
			e.Order, ordered = string(v), true
		}
	}
	return e
}
