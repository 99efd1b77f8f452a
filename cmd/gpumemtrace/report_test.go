package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// savedProfile returns the path of a profile.
func savedProfile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.pb.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := pprof.Write(f, snapshottest.Training()); err != nil {
		t.Fatal(err)
	}
	return path
}

// terminal returns both ends of a terminal so many columns wide.
func terminal(t *testing.T, columns uint16) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close() })
	fd := int(user.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: 24})
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return user, program
}

// What is printed to a terminal is as wide as that, and coloured unless
// NO_COLOR says otherwise.
func TestReportOnTerminal(t *testing.T) {
	path := savedProfile(t)
	for _, args := range [][]string{{"report", path}, {"diff", path, path}} {
		for _, width := range []int{30, 200} {
			for _, noColor := range []string{"", "1"} {
				user, program := terminal(t, uint16(width))
				v := command(t, args...)
				v.cmd.Stdout, v.cmd.Env = program, append(os.Environ(), "NO_COLOR="+noColor)
				v.start()
				program.Close()
				var out strings.Builder
				for chunk := make([]byte, 4096); ; {
					n, err := user.Read(chunk) // fails when the program has ended
					out.Write(chunk[:n])
					if err != nil {
						break
					}
				}
				v.ends(exitDone)
				if got := strings.Contains(out.String(), "\x1b["); got != (noColor == "") {
					t.Errorf("%s: coloured: %t, with NO_COLOR=%q:\n%s", args[0], got, noColor, out.String())
				}
				longest := 0
				for line := range strings.Lines(out.String()) {
					if !strings.Contains(line, "\x1b[") && !strings.HasPrefix(line, "    gpumemtrace ") { // a command is whole
						longest = max(longest, len([]rune(strings.TrimRight(line, "\r\n"))))
					}
				}
				if longest > width || args[0] == "report" && width == 200 && longest <= 100 {
					t.Errorf("%s: lines of up to %d columns on a terminal of %d", args[0], longest, width)
				}
			}
		}
	}
}

// What cannot be read is named for what it is, and the output has no part in it.
func TestStrangeFiles(t *testing.T) {
	dir := t.TempDir()
	var cpu bytes.Buffer
	other := &profile.Profile{SampleType: []*profile.ValueType{{Type: "alloc_objects"}}, PeriodType: &profile.ValueType{}}
	if err := other.Write(&cpu); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"go.pb.gz": cpu.String(), "a.json": "{}", "a.html": "<!DOCTYPE html>", "b.html": "<HTML>", "nothing": "", "cut.pb.gz": cpu.String()[:20]} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for args, says := range map[string]string{
		"report go.pb.gz":         "go.pb.gz: not a profile that gpumemtrace wrote: another program made it, it has no alloc_space; give what -o or --record of a trace wrote",
		"report a.html":           "a.html: not a profile that gpumemtrace wrote but a web page; give",
		"report nothing":          "nothing: not a profile that gpumemtrace wrote but empty; give",
		"diff a.json go.pb.gz":    "a.json: not a profile that gpumemtrace wrote but JSON; give",
		"whatif a.json":           "read a.json: not a recording but JSON: give a file that --record wrote",
		"top --once go.pb.gz":     "read go.pb.gz: not a recording but compressed with gzip",
		"fit 1=a.html 2=b --to 3": "read a.html: not a recording but a web page",
		"convert missing x.html":  "open missing: no such file",
		"convert a.json x.html":   "read a.json: not a recording but JSON",
		"report .":                "open .: not a regular file but a directory: name a file in it",
		"report b.html":           "b.html: not a profile that gpumemtrace wrote but a web page; give",
		"report cut.pb.gz":        "cut.pb.gz: not a profile that gpumemtrace wrote, or one that is cut short",
		"report go.pb.gz --oom":   "--oom needs a recording: read go.pb.gz: not a recording",
		"report go.pb.gz --leaks": "--leaks needs a recording: read go.pb.gz: not a recording",
		"convert go.pb.gz x.txt":  "read go.pb.gz: not a recording but compressed with gzip, as profiles are: give a file that --record wrote, or a memory snapshot of PyTorch (gpumemtrace report prints a profile, and",
		"convert a.json no/x.txt": "write no/x.txt: there is no directory no: make it first",
	} {
		v := command(t, strings.Fields(args)...)
		v.cmd.Dir = dir
		v.start().ends(exitFailed)
		if said := v.stderr.String(); !strings.HasPrefix(said, "gpumemtrace: "+says) {
			t.Errorf("%s: %s", args, said)
		}
	}
}
