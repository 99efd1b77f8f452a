package symbolize

import (
	"github.com/gpumemtrace/gpumemtrace/internal/loss"
)

// A Reason says why an address has no name. String gives the clause.
type Reason uint8

const (
	Named Reason = iota // it has one
	ProcessGone
	MapsDenied
	NoMapping
	Anonymous
	FileGone
	FileClosed
	FileSlow
	FileIrregular
	NotELF
	Malformed
	TooLarge
	OutsideSegments
	Stripped
	NoSymbol
	numReasons
)

var reasons = [numReasons]struct{ name, text string }{
	Named:           {"named", ""},
	ProcessGone:     {"process_gone", "the process ended before its mappings were read"},
	MapsDenied:      {"maps_denied", "the process's mappings may not be read"},
	NoMapping:       {"no_mapping", "no executable mapping has this address"},
	Anonymous:       {"anonymous", "anonymous memory without an entry in perf-PID.map"},
	FileGone:        {"file_gone", "the mapped file can no longer be opened"},
	FileClosed:      {"file_closed", "the mapped file was closed to stay within the limit of open files"},
	FileSlow:        {"file_slow", "reading the mapped file, or its debug file, has not ended yet"},
	FileIrregular:   {"file_irregular", "the mapping is of no regular file"},
	NotELF:          {"not_elf", "the mapped file is no 64-bit little-endian ELF file"},
	Malformed:       {"malformed", "the mapped file is a malformed ELF file"},
	TooLarge:        {"too_large", "the mapped file has more symbols than the limit"},
	OutsideSegments: {"outside_segments", "the address is outside the file's loaded segments"},
	Stripped:        {"stripped", "stripped: the file has no function symbols and no debug file was found"},
	NoSymbol:        {"no_symbol", "no symbol of the file covers the address"},
}

// String returns the clause that snapshot.Line.Reason holds, "" for Named.
func (r Reason) String() string {
	if r < numReasons {
		return reasons[r].text
	}
	return "invalid"
}

// What else can be lost: its causes follow the reasons, from Named + 1 on.
const (
	lossStaleMaps = int(numReasons-Named-1) + iota
	lossDebugTooLarge
	lossDebugMalformed
	lossDebuginfod
	lossFilesClosed
)

var causes = func() (out []loss.Cause) {
	for _, r := range reasons[Named+1:] {
		out = append(out, loss.Cause{Name: "unnamed_" + r.name, Help: "addresses without a name because " + r.text})
	}
	return append(out,
		loss.Cause{Name: "symbolize_stale_maps", Help: "addresses looked up in mappings that may be out of date because re-reading them is rate-limited"},
		loss.Cause{Name: "symbolize_debug_too_large", Help: "files without source lines because their debug information is larger than the limit"},
		loss.Cause{Name: "symbolize_debug_malformed", Help: "files without source lines because their debug information cannot be read"},
		loss.Cause{Name: "symbolize_debuginfod_failed", Help: "debug files that a debuginfod server did not deliver because of an error"},
		loss.Cause{Name: "symbolize_files_closed", Help: "mapped files closed to stay within the limit of open files"},
	)
}()
