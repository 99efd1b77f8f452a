package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
	"github.com/gpumemtrace/gpumemtrace/pprofout"
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
	if err := pprofout.Write(f, snapshottest.Training()); err != nil {
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
					if !strings.Contains(line, "\x1b[") {
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
