// Command dist puts what scripts/dist has built into packages: for each architecture a
// tarball, a .deb, an .rpm and a list of what is in the program (SBOM), an image for
// all of them, and an archive for each other system than Linux. The same input gives the same bytes.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A release is what is packed.
type release struct {
	version string
	time    time.Time // of every file
	source  string    // the repository
	built   string    // what scripts/dist has built: ARCH/gpumemtrace, ARCH/system, OS_ARCH/gpumemtrace, man1, completions
	out     string
}

// architectures have Go's names.
var architectures = []string{"amd64", "arm64"}

// elsewhere are the other systems, on which the program reads files.
var elsewhere = []string{"darwin_amd64", "darwin_arm64", "windows_amd64"}

func main() {
	log.SetFlags(0)
	log.SetPrefix("dist: ")
	var r release
	epoch := flag.Int64("epoch", 0, "time of every file, in seconds since 1970")
	flag.StringVar(&r.version, "version", "", "version, beginning with a number")
	flag.StringVar(&r.source, "source", "", "the repository")
	flag.StringVar(&r.built, "built", "", "what was built")
	flag.StringVar(&r.out, "out", "", "folder for the packages")
	flag.Parse()
	r.time = time.Unix(*epoch, 0).UTC()
	if r.version == "" || *epoch == 0 {
		log.Fatal("give -version and -epoch")
	}
	if err := r.pack(); err != nil {
		log.Fatal(err)
	}
}

func (r *release) pack() error {
	for _, arch := range architectures {
		contents, err := r.contents(arch)
		if err != nil {
			return err
		}
		base := r.name(arch)
		err = errors.Join(
			r.write(base+".tar.gz", func(w io.Writer) error { return r.tarball(w, arch, contents) }),
			r.write(base+".deb", func(w io.Writer) error { return r.packed(w, "deb", arch, contents) }),
			r.write(base+".rpm", func(w io.Writer) error { return r.packed(w, "rpm", arch, contents) }),
			r.write(base+".cdx.json", func(w io.Writer) error { return r.bill(w, arch) }),
		)
		if err != nil {
			return err
		}
	}
	if err := r.write(r.name("oci.tar"), r.image); err != nil {
		return err
	}
	for _, system := range elsewhere {
		if err := r.packFor(system); err != nil {
			return err
		}
	}
	return r.sums()
}

// write writes a file of the release.
func (r *release) write(name string, to func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	if err := errors.Join(to(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// sums writes the digest of each file, as sha256sum(1) checks it.
func (r *release) sums() error {
	files, err := filepath.Glob(filepath.Join(r.out, "gpumemtrace_*"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	var lines strings.Builder
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(b), filepath.Base(path))
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(lines.String()), 0o644)
}
