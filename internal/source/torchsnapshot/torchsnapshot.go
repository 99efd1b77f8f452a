package torchsnapshot

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

func init() { record.Register(record.Format{Is: is, Records: read}) }

// is reports whether a file that begins with head may be a snapshot.
func is(head []byte) bool {
	return len(head) > 1 && (head[0] == opProto && head[1] <= maxProtocol || head[0] == '{')
}

// read reports the snapshot that r has. path is for people. Errors wrap
// record.ErrNotRecording where a file is something else.
func read(r io.Reader, head []byte, path string, yield func(record.Record)) error {
	f, err := parse(r, head[0])
	if err != nil {
		return fmt.Errorf("read a memory snapshot of PyTorch: %w", err)
	}
	return f.records(filepath.Base(path), yield)
}
