package torchsnapshot

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

func init() { record.Register(record.Format{Is: is, Records: read}) }

// maxRatio bounds how many times larger a snapshot is than what gzip made of it: 8 to 12 times for real ones.
const maxRatio = 64

// is reports whether a file that begins with head may be a snapshot.
func is(head []byte) bool { return unpacked(head) || packed(head) }

func unpacked(head []byte) bool {
	return len(head) > 1 && (head[0] == opProto && head[1] <= maxProtocol || head[0] == '{')
}

func packed(head []byte) bool { return len(head) > 1 && head[0] == 0x1f && head[1] == 0x8b }

// read reports the snapshot that r has. path is for people. Errors wrap
// record.ErrNotRecording where a file is something else.
func read(file *io.SectionReader, head []byte, path string, yield func(record.Record)) error {
	var r io.Reader = file
	if packed(head) {
		z, err := gzip.NewReader(r)
		if err != nil {
			return fmt.Errorf("%w: %w", record.ErrNotRecording, err)
		}
		from := bufio.NewReader(io.LimitReader(z, maxRatio*file.Size()))
		if head, err = from.Peek(2); err != nil || !unpacked(head) { // a profile, such as pprof's
			return record.ErrNotRecording
		}
		r, path = from, strings.TrimSuffix(path, ".gz")
	}
	f, err := parse(r, head[0])
	if err != nil {
		return fmt.Errorf("read a memory snapshot of PyTorch: %w", err)
	}
	return f.records(filepath.Base(path), yield)
}
