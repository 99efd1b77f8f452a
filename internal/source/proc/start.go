package proc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxEnviron bounds an environment: the kernel starts no program with more than
// 6 MiB of arguments and environment.
const maxEnviron = 6 << 20 // bytes

// Environ returns those of the named variables that are set in the environment
// that a process was started with. They are read from its memory, which it may have
// overwritten; variables that it has set since do not show.
func Environ(pid int, names ...string) (map[string]string, error) {
	b, err := read(living(pid), "environ", maxEnviron)
	if err != nil {
		return nil, fmt.Errorf("read the environment of process %d: %w", pid, err)
	}
	return parseEnviron(b, names), nil
}

// parseEnviron uses the first of several equal names, as getenv(3) does.
func parseEnviron(b []byte, names []string) map[string]string {
	set := map[string]string{}
	for pair := range bytes.SplitSeq(b, []byte{0}) {
		name, value, ok := bytes.Cut(pair, []byte("="))
		if !ok || !slices.Contains(names, string(name)) {
			continue
		}
		if _, again := set[string(name)]; !again {
			set[string(name)] = string(value)
		}
	}
	return set
}

// auxiliary returns a value of a process's auxiliary vector (getauxval(3)), which is pairs of words.
func auxiliary(pid int, kind uint64) (value uint64, ok bool, err error) {
	const word = 8
	auxv, err := read(pid, "auxv", maxLine)
	for ; err == nil && len(auxv) >= 2*word; auxv = auxv[2*word:] {
		if binary.NativeEndian.Uint64(auxv) == kind {
			return binary.NativeEndian.Uint64(auxv[word:]), true, nil
		}
	}
	return 0, false, err
}

// EntryPoint returns the address at which a process's program begins.
func EntryPoint(pid int) (uint64, error) {
	const atEntry = 9
	address, ok, err := auxiliary(pid, atEntry)
	if err == nil && !ok {
		err = errors.New("its auxiliary vector has none")
	}
	if err != nil {
		return 0, fmt.Errorf("find the entry point of process %d: %w", pid, err)
	}
	return address, nil
}

// maxCommand bounds a command line, in bytes.
const maxCommand = 300

// CommandLine returns the arguments of a process with spaces between, of a long line the
// beginning, as valid UTF-8. It is read from the process's memory, which it may have
// overwritten.
func CommandLine(pid int) (string, error) {
	b, err := read(living(pid), "cmdline", 4*maxCommand)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		return "", fmt.Errorf("read the command line of process %d: %w", pid, err)
	}
	return commandLine(b), nil
}

func commandLine(b []byte) string {
	s := strings.ToValidUTF8(string(bytes.TrimRight(b, "\x00 ")), "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", " ")
	if len(s) <= maxCommand {
		return s
	}
	const more = "…"
	end := maxCommand - len(more)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}
