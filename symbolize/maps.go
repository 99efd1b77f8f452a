package symbolize

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxMappings bounds what one process may make us keep; the kernel's default
// vm.max_map_count is 65530 for all kinds of mappings together.
const maxMappings = 1 << 16

// maxMapsLine is longer than any line that the kernel writes: a path is at
// most a page, of which each newline becomes four bytes.
const maxMapsLine = 1 << 15

// A mapsEntry is one executable line of /proc/PID/maps (proc_pid_maps(5)).
type mapsEntry struct {
	start, limit, offset uint64
	major, minor         uint32
	inode                uint64
	path                 string // as the kernel wrote it, newlines undone
}

// deletedSuffix is what the kernel appends to the path of an unlinked file. A
// file may also be named so: only an inode tells.
const deletedSuffix = " (deleted)"

// file reports whether the entry maps a file that can be opened.
func (e *mapsEntry) file() bool {
	return e.inode != 0 && strings.HasPrefix(e.path, "/")
}

// parseMaps returns the executable entries in order of address. Lines that are
// not as the kernel writes them are an error.
func parseMaps(r io.Reader) ([]mapsEntry, error) {
	var out []mapsEntry
	br := bufio.NewReaderSize(r, maxMapsLine)
	for {
		line, err := br.ReadSlice('\n')
		if len(line) > 0 && !errors.Is(err, bufio.ErrBufferFull) {
			e, executable, perr := parseMapsLine(bytes.TrimSuffix(line, []byte("\n")))
			if perr != nil {
				return out, perr
			}
			if executable {
				if n := len(out); n > 0 && e.start < out[n-1].limit {
					return out, errors.New("parse maps: entries out of order")
				}
				out = append(out, e)
			}
		}
		switch {
		case err == io.EOF:
			return out, nil
		case err != nil:
			return out, fmt.Errorf("read maps: %w", err)
		case len(out) == maxMappings:
			return out, errors.New("read maps: too many executable mappings")
		}
	}
}

// parseMapsLine parses "start-limit perms offset major:minor inode   path".
func parseMapsLine(line []byte) (e mapsEntry, executable bool, err error) {
	var field [5][]byte
	rest := line
	for i := range field {
		var ok bool
		field[i], rest, ok = bytes.Cut(rest, []byte(" "))
		if !ok && i < 4 {
			return e, false, errors.New("parse maps: line too short")
		}
	}
	perms := field[1]
	if len(perms) != 4 {
		return e, false, errors.New("parse maps: bad permissions")
	}
	start, limit, ok1 := bytes.Cut(field[0], []byte("-"))
	major, minor, ok2 := bytes.Cut(field[3], []byte(":"))
	if !ok1 || !ok2 {
		return e, false, errors.New("parse maps: bad range or device")
	}
	if perms[2] != 'x' {
		return e, false, nil
	}
	number := func(b []byte, base, bits int) uint64 {
		n, perr := strconv.ParseUint(string(b), base, bits)
		if perr != nil && err == nil {
			err = fmt.Errorf("parse maps: %w", perr)
		}
		return n
	}
	e = mapsEntry{
		start:  number(start, 16, 64),
		limit:  number(limit, 16, 64),
		offset: number(field[2], 16, 64),
		major:  uint32(number(major, 16, 32)),
		minor:  uint32(number(minor, 16, 32)),
		inode:  number(field[4], 10, 64),
		path:   strings.ReplaceAll(string(bytes.TrimLeft(rest, " ")), `\012`, "\n"),
	}
	if err == nil && e.limit <= e.start {
		err = errors.New("parse maps: empty range")
	}
	return e, true, err
}
