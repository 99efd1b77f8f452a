//go:build linux

package atomicfile

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Own fails unless an open directory is this user's, and nobody else may write to it:
// others could put files there in place of ours, and remove them. The error says what to
// do.
func Own(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	path := filepath.Clean(dir.Name()) // a Root's has a dot at its end
	switch me := os.Geteuid(); {
	case int(st.Uid) != me:
		return fmt.Errorf("%s belongs to user %d, and must be of user %d: name another directory, or chown it", path, st.Uid, me)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others may write to %s: name another directory, or chmod go-w it", path)
	}
	return nil
}
