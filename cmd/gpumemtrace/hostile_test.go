package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	wire "encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// What a file of less than a megabyte may cost, whatever is in it.
const (
	hostileSize   = 1_000_000
	hostileMemory = 256 << 20
	// recordingMemory is what a recording of that size may cost, which may have 250,000 events.
	recordingMemory = 512_000_000
	// hostileWork is how many million blocks of the program's code may run for each file that is named.
	hostileWork = 500
	// hang is a limit in seconds of processor time that only a hang reaches.
	hang = 60
	// addressSpace keeps the machine safe from a program that fails this test. What Go and
	// the C library reserve without using it is part of it.
	addressSpace = 4 << 30
)

// counting is the program under test, which counts how often each block of its code runs.
var counting = sync.OnceValues(func() (string, error) {
	path := binary + "-counting"
	build := exec.Command("go", "build", "-ldflags=-w", "-cover", "-covermode=count", "-coverpkg=github.com/gpumemtrace/gpumemtrace/...", "-o", path, ".")
	build.Env = append(os.Environ(), "GOGC=400") // a quarter faster
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program that counts: %w\n%s", err, out)
	}
	return path, nil
})

// covdata is the path of go's program that reads what was counted. To have go look for it each
// time would take most of the time.
var covdata = sync.OnceValues(func() (string, error) {
	path, err := exec.Command("go", "tool", "-n", "covdata").Output()
	return strings.TrimSpace(string(path)), err
})

// A meter adds up what runs of the program cost in work: how many blocks of its code ran, which
// is the same on each machine.
type meter struct {
	t      *testing.T
	memory int64  // that each may take, in bytes
	work   int    // in millions of blocks, that all may take; 0 for hostileWork for each file
	counts string // a folder
	files  int    // that were read
	runs   []string
}

// newMeter returns a meter, which is read at the end of the test.
func newMeter(t *testing.T, memory int64, work int) *meter {
	m := &meter{t: t, memory: memory, work: work, counts: t.TempDir()}
	t.Cleanup(m.read)
	return m
}

// costs runs the program and checks what that took of memory. It says how it ended.
func (m *meter) costs(args ...string) *invocation {
	t := m.t
	t.Helper()
	program, err := counting()
	if err != nil {
		t.Fatal(err)
	}
	v := command(t, args...)
	v.cmd.Stdout = nil // it may be much
	v.cmd.Env = append(os.Environ(), "GOCOVERDIR="+m.counts)
	limits := fmt.Sprintf("ulimit -v %d && ulimit -t %d && exec \"$0\" \"$@\"", addressSpace>>10, hang)
	v.cmd.Path, v.cmd.Args = "/bin/sh", append([]string{"sh", "-c", limits, program}, args...)
	v.start()
	<-v.exited
	for _, arg := range args {
		if filepath.IsAbs(arg[strings.Index(arg, "=")+1:]) {
			m.files++
		}
	}
	m.runs = append(m.runs, strings.Join(args, " "))
	if memory := v.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10; memory > m.memory {
		t.Errorf("%s: %d MiB of memory", strings.Join(args, " "), memory>>20)
	}
	// A recording that lacks what was asked for is named: the command itself was right.
	code, stderr := v.code(), v.stderr.String()
	lacking := code == exitUsage && (strings.Contains(stderr, "x.gmt ") || strings.Contains(stderr, "this recording "))
	if code != exitDone && code != exitFailed && !lacking || strings.Contains(stderr, "goroutine ") {
		t.Errorf("%s: exit code %d: %.300s", strings.Join(args, " "), code, stderr)
	}
	return v
}

// read checks how many blocks ran.
func (m *meter) read() {
	program, err := covdata()
	if err != nil {
		m.t.Fatal(err)
	}
	text := filepath.Join(m.counts, "text")
	if out, err := exec.Command(program, "textfmt", "-i="+m.counts, "-o="+text).CombinedOutput(); err != nil {
		m.t.Errorf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(text)
	if err != nil {
		m.t.Error(err)
	}
	sum, highest, most := 0, 0, ""
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		n, _ := strconv.Atoi(fields[len(fields)-1])
		if sum += n; n > highest {
			highest, most = n, fields[0]
		}
	}
	if work := cmp.Or(m.work, hostileWork*m.files); sum == 0 || sum/1_000_000 > work {
		m.t.Errorf("%d million blocks, %d million of them %s:\n%s", sum/1_000_000, highest/1_000_000, most, strings.Join(m.runs, "\n"))
	}
}

// message appends a field with bytes to a protocol buffer's message.
func message(b []byte, field uint64, content ...byte) []byte {
	b = wire.AppendUvarint(b, field<<3|2)
	return append(wire.AppendUvarint(b, uint64(len(content))), content...)
}

// ofOurs is the beginning of a profile of ours: its sample types and their names.
func ofOurs() (out []byte) {
	out = message(out, 6)
	for i := range snapshot.AllValues {
		v := &snapshot.AllValues[i]
		out = message(out, 6, []byte(v.Name)...)
		if !v.Failed {
			out = message(out, 1, 1<<3, byte(i+1))
		}
	}
	return out
}

// bomb is a gzip file of hostileSize bytes at most, of a head and then of parts that repeat.
func bomb(t *testing.T, head []byte, part ...byte) []byte {
	t.Helper()
	var out, member bytes.Buffer
	pack := func(to *bytes.Buffer, data []byte) {
		z, _ := gzip.NewWriterLevel(to, gzip.BestCompression)
		z.Write(data)
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	pack(&out, head)
	pack(&member, bytes.Repeat(part, max(1, 8<<20/len(part))))
	for out.Len()+member.Len() < hostileSize {
		out.Write(member.Bytes())
	}
	return out.Bytes()
}

// A small profile takes little, whatever it unpacks to and whosever it is.
func TestHostileProfiles(t *testing.T) {
	ours := ofOurs()
	values := message(nil, 2, message(nil, 2, make([]byte, 5)...)...)
	location := message(nil, 4, 1<<3, 1)
	wide := message(nil, 2, message(message(nil, 1, bytes.Repeat([]byte{1}, 1<<16)...), 2, make([]byte, 5)...)...)
	lines := message(nil, 4, append(message(nil, 4, 1<<3, 1), bytes.Repeat(message(nil, 4), 1<<16)...)...)
	for name, data := range map[string][]byte{
		"empty samples of nobody's": bomb(t, nil, message(nil, 2)...),
		"empty samples":             bomb(t, ours, message(nil, 2)...),
		"samples without a stack":   bomb(t, ours, values...),
		"samples with wide stacks":  bomb(t, append(slices.Clip(ours), location...), wide...),
		"sample types":              bomb(t, ours, message(nil, 1)...),
		"mappings":                  bomb(t, ours, message(nil, 3)...),
		"locations":                 bomb(t, ours, location...),
		"lines":                     bomb(t, ours, lines...),
		"functions":                 bomb(t, ours, message(nil, 5)...),
		"texts":                     bomb(t, ours, message(nil, 6)...),
		"long texts":                bomb(t, ours, message(nil, 6, make([]byte, 1<<16)...)...),
		"comments":                  bomb(t, ours, 13<<3, 1),
		"packed comments":           bomb(t, ours, message(nil, 13, make([]byte, 1<<16)...)...),
		"unknown fields":            bomb(t, ours, 100<<3&0x7f|0x80, 100>>4, 1),
		"zeros":                     bomb(t, ours, 0),
		"a field without an end":    bomb(t, append(slices.Clip(ours), 6<<3|2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), 0),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "x.pb.gz")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			m := newMeter(t, hostileMemory, 0)
			for _, args := range [][]string{{"report", path, "-n", "-1"}, {"report", path, "--by", "kind"}, {"diff", path, path, "-n", "-1"}} {
				if v := m.costs(args...); v.code() != exitDone && !strings.Contains(v.stderr.String(), "x.pb.gz: not a profile that gpumemtrace wrote: ") {
					t.Errorf("%q", v.stderr.String())
				}
			}
			// Nothing but a recording is converted, or shown by top.
			for _, args := range [][]string{{"convert", path, "-o", "-"}, {"top", path, "--once"}} {
				m.costs(args...).says("x.pb.gz", "not a recording")
			}
		})
	}
}

// What is not a regular file is refused at once, whoever would write to it.
func TestReadsRegularFilesAlone(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir, "/dev/zero", os.DevNull} {
		for _, args := range [][]string{{"report", path}, {"diff", path, path}, {"convert", path, "-o", "-"}, {"top", path, "--once"}} {
			command(t, args...).start().ends(exitFailed).says(path, "not a regular file")
		}
	}
}
