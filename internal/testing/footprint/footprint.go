// Package footprint measures what a tracer takes of the machine, for tests of what must
// not grow in months.
package footprint

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Footprint is what a process takes at one moment.
type Footprint struct {
	Resident           int // MiB
	Descriptors, Links int // of BPF are the links, maps and their memory
	Maps, MapMemory    int // MapMemory in MiB
}

// Of returns the footprint of a process.
func Of(pid int) (f Footprint, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return f, err
	}
	_, resident, _ := strings.Cut(string(status), "VmRSS:")
	f.Resident = number(resident) >> 10 // from KiB
	all, err := os.ReadDir(filepath.Join(dir, "fdinfo"))
	if err != nil {
		return f, err
	}
	bytes, counted := 0, map[int]bool{} // two descriptors may be of one map
	for _, fd := range all {
		f.Descriptors++
		text, _ := os.ReadFile(filepath.Join(dir, "fdinfo", fd.Name())) // closed meanwhile
		switch info := string(text); {
		case strings.Contains(info, "link_type:"):
			f.Links++
		case strings.Contains(info, "map_type:"):
			_, id, _ := strings.Cut(info, "map_id:")
			if n := number(id); counted[n] {
				continue
			}
			counted[number(id)] = true
			f.Maps++
			_, memory, _ := strings.Cut(info, "memlock:")
			bytes += number(memory)
		}
	}
	f.MapMemory = bytes >> 20
	return f, nil
}

// number returns the number that a text begins with, 0 for none.
func number(text string) int {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n
}

// Most has the larger figure of each.
func (f Footprint) Most(g Footprint) Footprint {
	return Footprint{max(f.Resident, g.Resident), max(f.Descriptors, g.Descriptors), max(f.Links, g.Links), max(f.Maps, g.Maps), max(f.MapMemory, g.MapMemory)}
}

// Grown says what is larger than it first was, but for a tenth, and for so many MiB of
// resident memory.
func (f Footprint) Grown(first Footprint, resident int) (out []string) {
	for _, c := range []struct {
		what              string
		got, first, slack int
	}{
		{"resident MiB", f.Resident, first.Resident, resident},
		{"descriptors", f.Descriptors, first.Descriptors, first.Descriptors / 10},
		{"BPF links", f.Links, first.Links, first.Links / 10},
		{"BPF maps", f.Maps, first.Maps, first.Maps / 10},
		{"BPF map MiB", f.MapMemory, first.MapMemory, first.MapMemory/10 + 1},
	} {
		if c.got > c.first+c.slack {
			out = append(out, fmt.Sprintf("%s: %d, %d at first", c.what, c.got, c.first))
		}
	}
	return out
}
