package userfile

import (
	"path/filepath"
	"strings"
)

// profile is how names of profiles end.
const profile = ".pb.gz"

// IsProfile tells a profile from a recording by its name.
func IsProfile(path string) bool { return strings.HasSuffix(path, profile) }

// Stem returns a path without what its name ends with, such as ".gmt".
func Stem(path string) string {
	if IsProfile(path) {
		return strings.TrimSuffix(path, profile)
	}
	return strings.TrimSuffix(path, filepath.Ext(path))
}
