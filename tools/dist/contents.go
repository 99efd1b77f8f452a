package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A file is one of what is installed.
type file struct {
	path   string // absolute, where it goes
	mode   int64
	text   []byte
	config bool   // kept where it was changed
	only   string // "deb" or "rpm": where it goes depends on the distribution
}

// contents returns what is installed, in order of path.
func (r *release) contents(arch string) (files []file, err error) {
	add := func(f file, from string) {
		if err == nil {
			f.text, err = os.ReadFile(from)
			files = append(files, f)
		}
	}
	in := func(name string) string { return filepath.Join(r.source, name) }
	completion := func(name string) string { return filepath.Join(r.built, "completions", name) }
	add(file{path: "/usr/bin/gpumemtrace", mode: 0o755}, filepath.Join(r.built, arch, "gpumemtrace"))
	add(file{path: "/usr/lib/systemd/system/gpumemtrace.service", mode: 0o644}, in("deploy/systemd/gpumemtrace.service"))
	add(file{path: "/etc/gpumemtrace/agent.yaml", mode: 0o600, config: true}, in("deploy/systemd/agent.yaml"))
	add(file{path: "/usr/share/doc/gpumemtrace/copyright", mode: 0o644}, in("LICENSE"))
	add(file{path: "/usr/share/doc/gpumemtrace/README.md", mode: 0o644}, in("README.md"))
	documents, globErr := filepath.Glob(in("docs/*.md"))
	if globErr != nil || len(documents) == 0 {
		return nil, fmt.Errorf("no documents: %v", globErr)
	}
	for _, name := range documents {
		add(file{path: "/usr/share/doc/gpumemtrace/docs/" + filepath.Base(name), mode: 0o644}, name)
	}
	add(file{path: "/usr/share/bash-completion/completions/gpumemtrace", mode: 0o644}, completion("gpumemtrace.bash"))
	add(file{path: "/usr/share/fish/vendor_completions.d/gpumemtrace.fish", mode: 0o644}, completion("gpumemtrace.fish"))
	add(file{path: "/usr/share/zsh/vendor-completions/_gpumemtrace", mode: 0o644, only: "deb"}, completion("_gpumemtrace"))
	add(file{path: "/usr/share/zsh/site-functions/_gpumemtrace", mode: 0o644, only: "rpm"}, completion("_gpumemtrace"))
	pages, globErr := filepath.Glob(filepath.Join(r.built, "man1", "*.1"))
	if globErr != nil || len(pages) == 0 {
		return nil, fmt.Errorf("no manual pages: %v", globErr)
	}
	for _, page := range pages {
		add(file{path: "/usr/share/man/man1/" + filepath.Base(page) + ".gz", mode: 0o644}, page)
		if err == nil {
			last := &files[len(files)-1]
			last.text, err = compress(last.text)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return files, err
}

// packFor packs the program for another system than Linux.
func (r *release) packFor(system string) error {
	files := []file{{path: "/LICENSE", mode: 0o644}, {path: "/README.md", mode: 0o644}, {path: "/gpumemtrace", mode: 0o755}}
	pack, extension := r.tarball, ".tar.gz"
	if strings.HasPrefix(system, "windows") {
		files[2].path, pack, extension = "/gpumemtrace.exe", r.zip, ".zip"
	}
	for i, from := range []string{filepath.Join(r.source, "LICENSE"), filepath.Join(r.source, "README.md"), filepath.Join(r.built, system, "gpumemtrace")} {
		var err error
		if files[i].text, err = os.ReadFile(from); err != nil {
			return err
		}
	}
	return r.write(r.name(system)+extension, func(w io.Writer) error { return pack(w, system, files) })
}

// name is that of a package, without its extension.
func (r *release) name(system string) string {
	return fmt.Sprintf("gpumemtrace_%s_%s", r.version, system)
}

// zip packs files below one folder that has the release's name.
func (r *release) zip(w io.Writer, system string, files []file) error {
	z := zip.NewWriter(w)
	for _, f := range files {
		h := &zip.FileHeader{Name: r.name(system) + f.path, Method: zip.Deflate, Modified: r.time}
		h.SetMode(fs.FileMode(f.mode))
		to, err := z.CreateHeader(h)
		if err == nil {
			_, err = to.Write(f.text)
		}
		if err != nil {
			return err
		}
	}
	return z.Close()
}

// compress returns a gzip of it, without name and time.
func compress(b []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	err = z.Close()
	return out.Bytes(), err
}

// folders returns the folders that lead to files, outermost first.
func folders(files []file) (all []string) {
	for _, f := range files {
		for dir := path.Dir(f.path); dir != "/"; dir = path.Dir(dir) {
			all = append(all, dir)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// tarball packs files below one folder that has the release's name.
func (r *release) tarball(w io.Writer, arch string, files []file) error {
	root := r.name(arch)
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	files = slices.DeleteFunc(slices.Clone(files), func(f file) bool { return f.only == "deb" })
	t := tar.NewWriter(z)
	for _, dir := range append([]string{""}, folders(files)...) {
		if err := r.entry(t, tar.TypeDir, root+dir+"/", 0o755, nil); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := r.entry(t, tar.TypeReg, root+f.path, f.mode, f.text); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return z.Close()
}

// entry adds root's file or folder to an archive.
func (r *release) entry(t *tar.Writer, kind byte, name string, mode int64, text []byte) error {
	err := t.WriteHeader(&tar.Header{
		Typeflag: kind, Name: name, Mode: mode, Size: int64(len(text)), ModTime: r.time, Format: tar.FormatPAX,
		Uname: "root", Gname: "root",
	})
	if err == nil {
		_, err = t.Write(text)
	}
	return err
}
