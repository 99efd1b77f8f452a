package recordtest

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Snapshot returns one of the real snapshots of PyTorch in a folder, which are compressed.
func Snapshot(t testing.TB, folder, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join(folder, name+".pickle.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
