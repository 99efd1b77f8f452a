package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var dist = flag.String("dist", "../../dist", "the packages")

// one returns the file of the release with a suffix.
func one(t *testing.T, suffix string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(*dist, "gpumemtrace_*"+suffix))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q in %s: make dist", found, *dist)
	}
	return found[0]
}

// unpack writes what is in an archive below a folder.
func unpack(t *testing.T, r io.Reader, dir string) {
	t.Helper()
	for a := tar.NewReader(r); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeReg:
			var text []byte
			if text, err = io.ReadAll(a); err == nil {
				err = os.WriteFile(path, text, fs.FileMode(h.Mode))
			}
		default:
			t.Fatalf("%s is of type %c", h.Name, h.Typeflag)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// program checks that a file is the stripped program for an architecture.
func program(t *testing.T, path, arch string) *elf.File {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if f.Machine != machines[arch] || f.Section(".debug_info") != nil || f.Section(".symtab") != nil {
		t.Errorf("%s is for %v, or not stripped", path, f.Machine)
	}
	return f
}

// untar unpacks a tarball and returns the folder in it.
func untar(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name + ".tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unpack(t, z, dir)
	return filepath.Join(dir, filepath.Base(name))
}

// Each archive has the program for its system.
func TestArchives(t *testing.T) {
	for _, system := range elsewhere {
		name, program := strings.TrimSuffix(one(t, "_oci.tar"), "oci.tar")+system, "gpumemtrace"
		var in fs.FS
		if strings.HasPrefix(system, "windows") {
			z, err := zip.OpenReader(name + ".zip")
			if err != nil {
				t.Fatal(err)
			}
			defer z.Close()
			if in, err = fs.Sub(z, filepath.Base(name)); err != nil {
				t.Fatal(err)
			}
			program += ".exe"
		} else {
			in = os.DirFS(untar(t, name))
		}
		for _, file := range []string{"LICENSE", "README.md", program} {
			b, err := fs.ReadFile(in, file)
			if err != nil || len(b) == 0 {
				t.Errorf("%s of %s: %d bytes, %v", file, system, len(b), err)
			}
			if file != program {
				continue
			}
			info, err := buildinfo.Read(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			of := map[string]string{}
			for _, s := range info.Settings {
				of[s.Key] = s.Value
			}
			if is := of["GOOS"] + "_" + of["GOARCH"]; is != system {
				t.Errorf("the program of %s is for %s", system, is)
			}
		}
	}
}

func TestTarballs(t *testing.T) {
	for _, arch := range architectures {
		root := untar(t, strings.TrimSuffix(one(t, "_"+arch+".deb"), ".deb"))
		program(t, filepath.Join(root, "usr/bin/gpumemtrace"), arch)
		for _, name := range []string{"usr/lib/systemd/system/gpumemtrace.service", "usr/share/man/man1/gpumemtrace.1.gz", "usr/share/zsh/site-functions/_gpumemtrace"} {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Error(err)
			}
		}
	}
}

// The image holds together by its own digests, and has all that the program is loaded
// with. That for this machine runs.
func TestImage(t *testing.T) {
	f, err := os.Open(one(t, "_oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	unpack(t, f, dir)
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(outer); err != nil {
		t.Fatal(err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] == "" {
		t.Fatalf("%+v, %v", manifest, err)
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	images, err := index.IndexManifest()
	if err != nil || len(images.Manifests) != len(architectures) {
		t.Fatalf("%+v, %v", images, err)
	}
	for i, arch := range architectures {
		t.Run(arch, func(t *testing.T) {
			if p := images.Manifests[i].Platform; p == nil || !p.Equals(v1.Platform{OS: "linux", Architecture: arch}) {
				t.Errorf("platform %v", p)
			}
			image, err := index.Image(images.Manifests[i].Digest)
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			layers := mutate.Extract(image)
			defer layers.Close()
			unpack(t, layers, root)
			p := program(t, filepath.Join(root, "usr/bin/gpumemtrace"), arch)
			needed, err := p.ImportedLibraries()
			if err != nil {
				t.Fatal(err)
			}
			var loader []byte
			for _, s := range p.Progs {
				if s.Type == elf.PT_INTERP {
					loader, err = io.ReadAll(s.Open())
				}
			}
			if err != nil || len(loader) == 0 {
				t.Fatalf("no loader, %v", err)
			}
			triple := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
			paths := []string{strings.Trim(string(loader), "\x00"), "/etc/ssl/certs/ca-certificates.crt", "/tmp", "/var/lib/gpumemtrace"}
			for _, library := range needed {
				if !strings.HasPrefix(library, "ld-") {
					paths = append(paths, "/lib/"+triple+"/"+library)
				}
			}
			for _, path := range paths {
				if _, err := os.Stat(filepath.Join(root, path)); err != nil {
					t.Error(err)
				}
			}
			if arch != runtime.GOARCH {
				return
			}
			cmd := exec.Command("/usr/bin/gpumemtrace", "--version")
			cmd.SysProcAttr, cmd.Dir, cmd.Env = &syscall.SysProcAttr{Chroot: root}, "/", []string{}
			if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "gpumemtrace") {
				t.Errorf("%s, %v", out, err)
			}
		})
	}
}

func TestBills(t *testing.T) {
	for _, arch := range architectures {
		f, err := os.Open(one(t, "_"+arch+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var b cdx.BOM
		if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&b); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range *b.Components {
			names = append(names, c.Name)
			if c.Version == "" || c.PackageURL == "" {
				t.Errorf("%+v", c)
			}
		}
		for _, name := range []string{"std", "github.com/cilium/ebpf", "github.com/NVIDIA/go-nvml"} {
			if !slices.Contains(names, name) {
				t.Errorf("%s is not in %q", name, names)
			}
		}
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "nfpm") || strings.Contains(name, "md2man") }) {
			t.Errorf("what builds packages is in %q", names)
		}
	}
}
