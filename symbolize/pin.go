package symbolize

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A fileID tells files apart while they are open: an inode number is reused
// only after the last descriptor is closed.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{st.Dev, st.Ino} }

// files are the open files, at most max of each kind.
type files struct {
	mu       sync.Mutex
	open     *cache[*image, struct{}]
	perfMaps *cache[*perfMap, struct{}]
	// Images by the device and inode that maps shows, and by content.
	byFile  map[fileID]*image
	byBuild map[string]*image
}

func newFiles(max int, loss *losses) *files {
	fs := &files{byFile: make(map[fileID]*image), byBuild: make(map[string]*image)}
	fs.open = newCache(max, func(im *image, _ struct{}) {
		loss.closedFiles.Add(1)
		fs.drop(im)
	})
	fs.perfMaps = newCache(max, func(m *perfMap, _ struct{}) { m.file.Close() })
	return fs
}

func (fs *files) drop(im *image) {
	delete(fs.byFile, im.key)
	delete(fs.byBuild, im.content)
	im.close()
}

func (fs *files) close() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.open.forget = func(im *image, _ struct{}) { fs.drop(im) }
	fs.open.clear()
	fs.perfMaps.clear()
}

// openImage opens the file of r. Programs that several processes map, or that
// have equal copies in several containers, share one image and one descriptor.
func (p *process) openImage(r *region) (*image, Reason) {
	fs := p.s.files
	key := fileID{unix.Mkdev(r.major, r.minor), r.inode}
	fs.mu.Lock()
	im, ok := fs.byFile[key]
	if ok {
		fs.open.get(im)
	}
	fs.mu.Unlock()
	if ok {
		return im, Named
	}
	f, reason := p.openMapped(r)
	if reason != Named {
		return nil, reason
	}
	im, reason = newImage(p.s, f, r)
	if reason != Named {
		f.Close()
		return nil, reason
	}
	im.pinDebug(p)

	fs.mu.Lock()
	defer fs.mu.Unlock()
	twin := fs.byFile[key]
	if twin == nil && im.content != "" {
		twin = fs.byBuild[im.content]
	}
	if twin != nil {
		im.close()
		fs.open.get(twin)
		return twin, Named
	}
	im.key = key
	fs.byFile[key] = im
	if im.content != "" {
		fs.byBuild[im.content] = im
	}
	fs.open.put(im, struct{}{})
	return im, Named
}

// openMapped opens the very file that r maps: through map_files, which also
// reaches deleted files and other mount namespaces but takes privileges
// (proc_pid_map_files(5)), or by its path in the process's root.
func (p *process) openMapped(r *region) (*os.File, Reason) {
	link := fmt.Sprintf("%s/map_files/%x-%x", p.dir, r.start, r.limit)
	if f, st, err := openRegular(unix.AT_FDCWD, link, 0); err == nil {
		if r.is(st) || linksTo(link, r.path) {
			return f, Named
		}
		f.Close()
	} else if errors.Is(err, errIrregular) {
		return nil, FileIrregular
	}
	// The kernel shows a path below the process's root; below a root set by
	// chroot alone, one of ours.
	reason := FileGone
	for _, open := range []func() (*os.File, *unix.Stat_t, error){
		func() (*os.File, *unix.Stat_t, error) {
			root, err := openRoot(p.dir)
			if err != nil {
				return nil, nil, err
			}
			defer unix.Close(root)
			return openRegular(root, r.path, unix.RESOLVE_IN_ROOT)
		},
		func() (*os.File, *unix.Stat_t, error) { return openRegular(unix.AT_FDCWD, r.path, 0) },
	} {
		f, st, err := open()
		if errors.Is(err, errIrregular) {
			reason = FileIrregular
		}
		if err != nil {
			continue
		}
		if r.is(st) {
			return f, Named
		}
		f.Close() // another file by the same name
	}
	return nil, reason
}

// is reports whether st is of the mapped file.
func (r *region) is(st *unix.Stat_t) bool {
	return idOf(st) == fileID{unix.Mkdev(r.major, r.minor), r.inode}
}

// linksTo reports whether a map_files link still leads to path. Overlay and
// btrfs show another device in maps than stat does.
func linksTo(link, path string) bool {
	to, err := os.Readlink(link)
	return err == nil && to == path
}

// openRoot returns a descriptor of the root directory that the process sees.
func openRoot(dir string) (int, error) {
	return unix.Open(dir+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

var errIrregular = fmt.Errorf("not a regular file")

// openRegular opens a regular file for reading. Nothing else is opened, not
// even for a moment: opening a device or a pipe has effects. With
// RESOLVE_IN_ROOT path and its symbolic links stay below dir.
func openRegular(dir int, path string, resolve uint64) (*os.File, *unix.Stat_t, error) {
	if resolve&unix.RESOLVE_IN_ROOT != 0 {
		path = strings.TrimLeft(path, "/")
	}
	const flags = unix.O_PATH | unix.O_CLOEXEC
	var fd int
	var err error
	if resolve == 0 { // some sandboxes refuse openat2
		fd, err = unix.Openat(dir, path, flags, 0)
	} else {
		fd, err = unix.Openat2(dir, path, &unix.OpenHow{Flags: flags, Resolve: resolve})
	}
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil, errIrregular
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, nil, err
	}
	return f, &st, nil
}

// openHost opens a regular file of our own file system.
func openHost(path string) (*os.File, error) {
	f, _, err := openRegular(unix.AT_FDCWD, filepath.Clean(path), 0)
	return f, err
}
