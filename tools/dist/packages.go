package main

import (
	"io"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers it
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers it
)

const (
	homepage = "https://github.com/gpumemtrace/gpumemtrace"
	summary  = "Who holds the GPU's memory, by call stack, in a process nobody changed"
)

// packed writes a package: "deb" or "rpm".
func (r *release) packed(w io.Writer, format, arch string, contents []file) error {
	// nfpm reads files from disk.
	stage, err := os.MkdirTemp("", "dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	scripts := filepath.Join(r.source, "tools/dist/scripts")
	info := &nfpm.Info{
		Name: "gpumemtrace", Arch: arch, Platform: "linux", Version: r.version, VersionSchema: "none", Release: "1",
		Section: "utils", Priority: "optional", License: "Apache-2.0", Homepage: homepage, Description: summary,
		Maintainer: "gpumemtrace contributors <gpumemtrace@users.noreply.github.com>",
		MTime:      r.time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Scripts: nfpm.Scripts{
				PostInstall: filepath.Join(scripts, "postinstall"),
				PreRemove:   filepath.Join(scripts, "preremove"),
				PostRemove:  filepath.Join(scripts, "postremove"),
			},
			// Not this machine's name.
			RPM: nfpm.RPM{BuildHost: "localhost", Group: "Development/Tools", Summary: summary},
		},
	}
	switch format {
	case "deb":
		info.Depends = []string{"libc6 (>= 2.34)"}
		info.Release = ""
	case "rpm":
		info.Depends = []string{"glibc >= 2.34"}
	}
	for _, f := range contents {
		if f.only != "" && f.only != format {
			continue
		}
		from := filepath.Join(stage, f.path)
		if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(from, f.text, 0o644); err != nil {
			return err
		}
		c := &files.Content{Source: from, Destination: f.path, FileInfo: &files.ContentFileInfo{
			Owner: "root", Group: "root", Mode: os.FileMode(f.mode), MTime: r.time,
		}}
		if f.config {
			c.Type = files.TypeConfigNoReplace
		}
		info.Contents = append(info.Contents, c)
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	return packager.Package(info, w)
}
