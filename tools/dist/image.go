package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image writes an archive of an OCI image layout, with an image for each architecture:
// the program, the C library that it was linked with, and certificates. NVIDIA's
// container runtime brings libnvidia-ml.
func (r *release) image(w io.Writer) error {
	dir, err := os.MkdirTemp("", "dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range architectures {
		image, err := r.imageOf(arch)
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch},
		}})
	}
	// The layout's own index names the image's: a name that tools load it by.
	outer := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{
			"org.opencontainers.image.ref.name": "gpumemtrace:" + strings.ReplaceAll(r.version, "+", "-"),
		}},
	})
	if _, err := layout.Write(dir, outer); err != nil {
		return err
	}
	return r.archive(w, dir)
}

func (r *release) imageOf(arch string) (v1.Image, error) {
	contents, err := r.contents(arch)
	if err != nil {
		return nil, err
	}
	// Units, pages and completions are for machines.
	contents = slices.DeleteFunc(contents, func(f file) bool {
		return f.path != "/usr/bin/gpumemtrace" && f.path != "/usr/share/doc/gpumemtrace/copyright"
	})
	system, err := r.system(arch)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, files := range [][]file{system, contents} { // what changes less, first
		var layer bytes.Buffer
		t := tar.NewWriter(&layer)
		for _, dir := range folders(files) {
			mode := int64(0o755)
			if dir == "/tmp" {
				mode = 0o1777
			}
			if err := r.entry(t, tar.TypeDir, dir[1:]+"/", mode, nil); err != nil {
				return nil, err
			}
		}
		for _, f := range files {
			if f.text == nil {
				continue // a folder
			}
			if err := r.entry(t, tar.TypeReg, f.path[1:], f.mode, f.text); err != nil {
				return nil, err
			}
		}
		if err := t.Close(); err != nil {
			return nil, err
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil },
			tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: l, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: r.time}}}); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/gpumemtrace"},
		Cmd:        []string{"agent"},
		WorkingDir: "/",
		Env: []string{
			"PATH=/usr/bin:/bin",
			"XDG_CACHE_HOME=/var/cache",
			"NVIDIA_VISIBLE_DEVICES=all",
			"NVIDIA_DRIVER_CAPABILITIES=utility",
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "gpumemtrace",
			"org.opencontainers.image.description": summary,
			"org.opencontainers.image.source":      homepage,
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     r.version,
		},
	}
	return mutate.ConfigFile(image, config)
}

// system returns what the program needs around it: what scripts/dist took from its own
// system, the C library above all, by the path that it goes to, and little else.
func (r *release) system(arch string) (files []file, err error) {
	root := filepath.Join(r.built, arch, "system")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		f := file{path: strings.TrimPrefix(path, root), mode: 0o644, text: text}
		if strings.Contains(filepath.Base(path), ".so") {
			f.mode = 0o755
		}
		files = append(files, f)
		return err
	})
	if err != nil {
		return nil, err
	}
	text := func(path, text string) { files = append(files, file{path: path, mode: 0o644, text: []byte(text)}) }
	text("/etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")
	text("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
	text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
	for _, dir := range []string{"/tmp", "/var/cache", "/var/lib/gpumemtrace", "/etc/gpumemtrace"} {
		files = append(files, file{path: dir + "/."})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return files, nil
}

// archive packs a folder.
func (r *release) archive(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		if d.IsDir() {
			return r.entry(t, tar.TypeDir, name+"/", 0o755, nil)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return r.entry(t, tar.TypeReg, name, 0o644, text)
	})
	return errors.Join(err, t.Close())
}
