package unwind

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nameOf names an address by the symbol tables of the mapped file: enough to
// know the functions of these tests.
func nameOf(t testing.TB, pid int, addr uint64) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var lo, hi, off, inode uint64
		var perm, dev, path string
		fmt.Sscanf(s.Text(), "%x-%x %s %x %s %d %s", &lo, &hi, &perm, &off, &dev, &inode, &path)
		if addr < lo || addr >= hi {
			continue
		}
		ef, err := elf.Open(path)
		if err != nil {
			return path
		}
		defer ef.Close()
		at := addr - lo + off
		for _, p := range ef.Progs {
			if p.Type == elf.PT_LOAD && at >= p.Off && at < p.Off+p.Filesz {
				at = at - p.Off + p.Vaddr
				break
			}
		}
		syms, _ := ef.Symbols()
		dyn, _ := ef.DynamicSymbols()
		for _, sym := range append(syms, dyn...) {
			if elf.ST_TYPE(sym.Info) == elf.STT_FUNC && at >= sym.Value && at < sym.Value+sym.Size {
				name := sym.Name
				for _, clone := range []string{".constprop", ".isra", ".part", ".cold"} {
					name, _, _ = strings.Cut(name, clone)
				}
				return name
			}
		}
		return fmt.Sprintf("%s+%#x", filepath.Base(path), at)
	}
	return fmt.Sprintf("%#x", addr)
}
