package symbolize

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"hash/crc32"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// maxDebugFile bounds the file whose checksum is taken for .gnu_debuglink.
const maxDebugFile = 4 << 30

// A debugFile holds symbols and debug information of an image, split off it.
type debugFile struct {
	file *proc.File
	elf  *proc.ELF
}

// pinDebug opens the image's debug file if the process sees another file
// system than we do: once the process is gone, nobody can.
func (im *image) pinDebug(p *process) {
	root, err := proc.OpenRoot(int(p.pid))
	if err != nil {
		return
	}
	defer root.Close()
	var ours unix.Stat_t
	if unix.Stat("/", &ours) == nil && root.ID == (proc.FileID{Dev: ours.Dev, Ino: ours.Ino}) {
		im.ours = true
		return
	}
	if im.complete() {
		return
	}
	open := func(path string) (*proc.File, error) { return root.Open(path, 0) }
	if d := im.openDebug(open, true); d != nil {
		im.debug = append(im.debug, d)
	}
}

// complete reports whether the image needs no debug file.
func (im *image) complete() bool {
	return im.elf.Section(".symtab") != nil && hasDwarf(im.elf.File)
}

// findDebug looks for the image's debug file in our own file system, then at
// the debuginfod servers. im.mu is held.
func (im *image) findDebug() {
	if im.search || im.complete() || len(im.debug) > 0 {
		return
	}
	im.search = true
	d := im.openDebug(proc.Open, im.ours)
	if d == nil && im.buildID != "" {
		if f := im.s.debuginfod.find(im.buildID); f != nil {
			if d = checkBuildID(f, im.buildID); d == nil {
				im.s.debuginfod.discard(im.buildID)
			}
		}
	}
	if d != nil {
		im.debug = append(im.debug, d)
	}
}

// openDebug tries the places that gdb does ("Separate Debug Files" in its
// manual). Those of .gnu_debuglink lie beside the image's own path, so that
// they are looked at only where that path means the image.
func (im *image) openDebug(open func(path string) (*proc.File, error), byPath bool) *debugFile {
	if id := im.buildID; len(id) > 2 {
		for _, dir := range im.s.cfg.debugDirs {
			if f, err := open(path.Join(dir, ".build-id", id[:2], id[2:]+".debug")); err == nil {
				if d := checkBuildID(f, id); d != nil {
					return d
				}
			}
		}
	}
	link, crc, ok := debugLink(im.elf.File)
	if !ok || !byPath {
		return nil
	}
	dir := path.Dir(im.path)
	places := []string{path.Join(dir, link), path.Join(dir, ".debug", link)}
	for _, d := range im.s.cfg.debugDirs {
		places = append(places, path.Join(d, dir, link))
	}
	for _, place := range places {
		if place == im.path {
			continue
		}
		if f, err := open(place); err == nil {
			if d := checkCRC(f, crc); d != nil {
				return d
			}
		}
	}
	return nil
}

// checkBuildID returns f as a debug file if it has the build id, and closes it
// if not.
func checkBuildID(f *proc.File, id string) *debugFile {
	if e, err := f.ELF(); err == nil && e.BuildID() == id {
		return &debugFile{f, e}
	}
	f.Close()
	return nil
}

// checkCRC returns f as a debug file if it has the checksum, and closes it if
// not.
func checkCRC(f *proc.File, crc uint32) *debugFile {
	e, err := f.ELF()
	if err == nil {
		h := crc32.NewIEEE()
		if _, err = io.Copy(h, io.NewSectionReader(f, 0, maxDebugFile)); err == nil && h.Sum32() == crc {
			return &debugFile{f, e}
		}
	}
	f.Close()
	return nil
}

// debugLink returns the file name and CRC-32 that .gnu_debuglink holds.
func debugLink(f *elf.File) (name string, crc uint32, ok bool) {
	b, err := proc.SectionData(f.Section(".gnu_debuglink"), 8<<10)
	if err != nil {
		return "", 0, false
	}
	end := bytes.IndexByte(b, 0)
	if end <= 0 {
		return "", 0, false
	}
	at := (end + 4) &^ 3
	if at+4 > len(b) {
		return "", 0, false
	}
	name = string(b[:end])
	if strings.Contains(name, "/") || name == "." || name == ".." {
		return "", 0, false
	}
	return name, binary.LittleEndian.Uint32(b[at:]), true
}
