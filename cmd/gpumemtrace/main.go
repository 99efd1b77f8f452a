// Command gpumemtrace says who holds a GPU's memory, by call stack. It works
// on unmodified programs.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
	_ "github.com/gpumemtrace/gpumemtrace/internal/source/torchsnapshot" // which record.Open reads
)

// version is set by the linker (-X main.version=...).
var version = "devel"

func main() {
	// This runs beside production jobs for days: memory is worth more than the
	// little time its garbage collection takes.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
	dumpOnSignal()
	defer func() { _ = removal.All() }() // in a panic
	exit(run(os.Args[1:]))
}

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitAlert  = 3 // agent --once
)

// A usageError is the error of a command line that is not valid.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// An exitError ends the program with the traced command's own exit code.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func run(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	var code exitError
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"):
		if cmd.Name() == "help" { // which command was meant is not known
			cmd = root
		}
		fmt.Fprintf(os.Stderr, "gpumemtrace: %v\nTry '%s --help'.\n", err, cmd.CommandPath())
		return exitUsage
	case errors.Is(err, removal.ErrEnding):
		return exitFailed // a signal ends the program, and says so
	}
	for line := range strings.Lines(err.Error()) { // one line for each joined error
		fmt.Fprintf(os.Stderr, "gpumemtrace: %s\n", strings.TrimSuffix(line, "\n"))
	}
	return exitFailed
}
