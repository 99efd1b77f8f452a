package main

import (
	"debug/buildinfo"
	"io"
	"path/filepath"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// bill writes what the program is made of, as it says itself (debug.BuildInfo), in
// CycloneDX's form: its own module, Go, and every module that is linked.
func (r *release) bill(w io.Writer, arch string) error {
	info, err := buildinfo.ReadFile(filepath.Join(r.built, arch, "gpumemtrace"))
	if err != nil {
		return err
	}
	purl := func(path, version string) string { return "pkg:golang/" + path + "@" + version }
	b := cdx.NewBOM()
	own := cdx.Component{
		BOMRef: "gpumemtrace", Type: cdx.ComponentTypeApplication, Name: "gpumemtrace", Version: r.version,
		PackageURL: purl(info.Main.Path, r.version) + "?goarch=" + arch + "&goos=linux",
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	b.Metadata = &cdx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: &own}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	components := []cdx.Component{{
		BOMRef: "std", Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion, PackageURL: purl("std", goVersion),
	}}
	uses := []string{"std"}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		ref := purl(m.Path, m.Version)
		properties := []cdx.Property{{Name: "go:sum", Value: m.Sum}}
		components = append(components, cdx.Component{
			BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: ref, Properties: &properties,
		})
		uses = append(uses, ref)
	}
	b.Components = &components
	b.Dependencies = &[]cdx.Dependency{{Ref: "gpumemtrace", Dependencies: &uses}}
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b)
}
