package symbolize

import "github.com/gpumemtrace/gpumemtrace/internal/model/loss"

// A reason says why an address has no name. It is none for one that has a name.
type reason uint8

const (
	none reason = iota
	processGone
	mapsDenied
	noMapping
	anonymous
	fileGone
	fileClosed
	fileSlow
	fileIrregular
	notELF
	malformed
	tooLarge
	outsideSegments
	stripped
	noSymbol
	numReasons
)

var reasons = [numReasons]struct{ name, text string }{
	processGone:     {"process_gone", "the process ended before its mappings were read"},
	mapsDenied:      {"maps_denied", "the process's mappings may not be read"},
	noMapping:       {"no_mapping", "no executable mapping has this address"},
	anonymous:       {"anonymous", "the memory is anonymous and has no entry in perf-PID.map"},
	fileGone:        {"file_gone", "the mapped file can no longer be opened"},
	fileClosed:      {"file_closed", "the mapped file was closed to stay within the limit of open files"},
	fileSlow:        {"file_slow", "reading the mapped file, or its debug file, has not ended yet"},
	fileIrregular:   {"file_irregular", "the mapped file is not a regular file"},
	notELF:          {"not_elf", "the mapped file is not a 64-bit little-endian ELF file"},
	malformed:       {"malformed", "the mapped file is a malformed ELF file"},
	tooLarge:        {"too_large", "the mapped file has more symbols than the limit"},
	outsideSegments: {"outside_segments", "the address is outside the file's loaded segments"},
	stripped:        {"stripped", "the file is stripped: it has no function symbols, and no debug file was found"},
	noSymbol:        {"no_symbol", "no symbol of the file covers the address"},
}

// String returns the clause that snapshot.Line.Reason holds, "" for none.
func (r reason) String() string { return reasons[r].text }

// causes has one for each reason but none, in their order, and then what else can
// be lost.
var causes = func() (out loss.Causes) {
	for _, r := range reasons[1:] {
		out.Add("unnamed_"+r.name, "addresses without a name because "+r.text)
	}
	return out
}()

var (
	lossStaleMaps      = causes.Add("symbolize_stale_maps", "addresses looked up in mappings that may be out of date because re-reading them is rate-limited")
	lossDebugTooLarge  = causes.Add("symbolize_debug_too_large", "files without source lines because their debug information is larger than the limit")
	lossDebugMalformed = causes.Add("symbolize_debug_malformed", "files without source lines because their debug information cannot be read")
	lossDebuginfod     = causes.Add("symbolize_debuginfod_failed", "debug files that a debuginfod server did not deliver because of an error")
	lossFilesClosed    = causes.Add("symbolize_files_closed", "mapped files closed to stay within the limit of open files")
)
