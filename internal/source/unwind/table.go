package unwind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/elfunwindinfo"
	sdtypes "go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// A table is the unwind table of one executable, as its unwind information says and
// the kernel side wants it. An entry holds from its address to that of the next.
//
// Encoded it is varints: start, size in bytes from there, the number of rules, the
// rules (4 bytes, then parameters), the number of entries, and for each the address
// less that of the one before, and the number of its rule.
type table struct {
	start, end uint64 // addresses, as the file has them
	rules      []sdtypes.UnwindInfo
	count      int    // of entries
	entries    []byte // encoded
}

// tableKind names what is remembered of a file: this form, of what this version of
// the unwinder makes of an executable.
const (
	tableKind       = "unwind table 1, ebpf-profiler " + profilerVersion
	profilerVersion = "v0.0.202633"
)

const (
	maxEntries = 1 << support.StackDeltaBucketLargest
	// maxPages are all that the kernel side has, of all executables: 4 GiB.
	maxPages = 1 << 16
	// maxRules is more than any known executable has, and a quarter of what the
	// kernel side has room for.
	maxRules = 4096
)

var (
	errTable    = errors.New("damaged unwind table")
	errTooLarge = errors.New("unwind table too large")
)

// readParts reads the parts of a file (split) side by side.
func readParts(parts ...io.ReaderAt) ([]*codeBlocks, error) {
	out, errs := make([]*codeBlocks, len(parts)), make([]error, len(parts))
	var all sync.WaitGroup
	for i, r := range parts {
		all.Go(func() { out[i], errs[i] = readPart(r) })
	}
	all.Wait()
	return out, errors.Join(errs...)
}

func readPart(r io.ReaderAt) (*codeBlocks, error) {
	ref := pfelf.NewReferenceWithOpenFunc("", linkless{}, func() (*pfelf.File, error) { return pfelf.NewFile(r, 0, false) })
	defer ref.Close()
	return extract(ref)
}

// linkless opens no other file.
type linkless struct{}

func (linkless) OpenELF(string) (*pfelf.File, error) { return nil, os.ErrNotExist }

// extract reads the unwind information of an executable.
func extract(ref *pfelf.Reference) (_ *codeBlocks, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("read unwind information: %v", p)
		}
	}()
	intervals, err := elfunwindinfo.ExtractELF(ref)
	if err != nil {
		return nil, err
	}
	return blocksOf(intervals)
}

// codeBlocks are the unwind information of an executable or of a part of it, in less memory than
// the unwinder's own form takes.
type codeBlocks struct {
	blocks []codeBlock
	deltas []delta
	rules  []sdtypes.UnwindInfo
}

// A codeBlock is a block of code and where its deltas end.
type codeBlock struct {
	start, end uint64
	deltas     int
}

// A delta says that a rule holds from so many bytes behind the start of a block. The rule is an
// index of codeBlocks.rules.
type delta struct{ offset, rule uint32 }

// blocksOf converts the unwinder's own form. As the unwinder's Go side does for its
// maps, it joins a rule with the next one where that differs by one push or pop a byte or two
// later.
func blocksOf(intervals *sdtypes.IntervalData) (*codeBlocks, error) {
	p := &codeBlocks{blocks: make([]codeBlock, 0, len(intervals.Blocks)), deltas: make([]delta, 0, intervals.NumDeltas)}
	numbers := make(map[sdtypes.UnwindInfo]uint32)
	for _, block := range intervals.Blocks {
		joined := false
		for i, d := range block.Deltas {
			if joined {
				joined = false
				continue
			}
			rule := d.Info
			if i+1 < len(block.Deltas) {
				rule.MergeOpcode = join(d, block.Deltas[i+1])
				joined = rule.MergeOpcode != 0
			}
			if command(rule) {
				rule = sdtypes.UnwindInfo{Flags: support.UnwindFlagCommand, Param: rule.Param}
			}
			n, ok := numbers[rule]
			if !ok {
				if n = uint32(len(p.rules)); n > maxRules {
					return nil, errTooLarge
				}
				numbers[rule] = n
				p.rules = append(p.rules, rule)
			}
			p.deltas = append(p.deltas, delta{d.Offset, n})
		}
		p.blocks = append(p.blocks, codeBlock{block.Start, block.End, len(p.deltas)})
	}
	return p, nil
}

func command(rule sdtypes.UnwindInfo) bool { return rule.Flags&support.UnwindFlagCommand != 0 }

// inOrder merges the blocks of parts. It passes them to f in order of their start: the index of the
// part, and that of the block in it. The blocks of each part must be in that order.
func inOrder(parts []*codeBlocks, f func(part, block int)) {
	at := make([]int, len(parts))
	for {
		first, second := -1, uint64(math.MaxUint64)
		for i, p := range parts {
			if at[i] == len(p.blocks) {
				continue
			}
			switch start := p.blocks[at[i]].start; {
			case first < 0:
				first = i
			case start < parts[first].blocks[at[first]].start:
				first, second = i, parts[first].blocks[at[first]].start
			default:
				second = min(second, start)
			}
		}
		if first < 0 {
			return
		}
		for blocks := parts[first].blocks; ; {
			f(first, at[first])
			if at[first]++; at[first] == len(blocks) || blocks[at[first]].start >= second {
				break
			}
		}
	}
}

// An encoder makes a table of rules and addresses that come in order.
type encoder struct {
	table
	numbers map[sdtypes.UnwindInfo]int
	last    int
	at      uint64
}

// number returns the number of a rule in the table.
func (e *encoder) number(rule sdtypes.UnwindInfo) int {
	n, ok := e.numbers[rule]
	if !ok {
		n = len(e.rules)
		e.numbers[rule] = n
		e.rules = append(e.rules, rule)
	}
	return n
}

// add adds an entry, if the rule is another than that of the last one. An address
// below the last one's, as two pieces of code in one place have, is left out.
func (e *encoder) add(address uint64, rule int) {
	if e.count == 0 {
		e.start, e.at = address, address
	} else if rule == e.last || address < e.at {
		return
	}
	e.entries = binary.AppendUvarint(e.entries, address-e.at)
	e.entries = binary.AppendUvarint(e.entries, uint64(rule))
	e.last, e.at = rule, address
	e.count++
}

// encodeTable encodes the table of a file in parts. As the unwinder's Go side does for its maps, it
// begins the rule of a signal's frame a byte early, and ends code where a gap follows.
func encodeTable(parts ...*codeBlocks) ([]byte, error) {
	e := &encoder{numbers: make(map[sdtypes.UnwindInfo]int)}
	// The rules of each part have numbers in the table by their first use, however many parts there
	// are. Before that it is -1.
	numbers := make([][]int, len(parts))
	for i, p := range parts {
		numbers[i] = slices.Repeat([]int{-1}, len(p.rules))
	}
	var before *codeBlock
	finish := func() { // ends the code of the block before
		e.add(before.end, e.number(sdtypes.UnwindInfoInvalid))
		e.end = max(e.end, e.at, before.end)
	}
	inOrder(parts, func(i, j int) {
		p := parts[i]
		block := &p.blocks[j]
		if before != nil && before.end+sdtypes.MinimumGap < block.start {
			finish()
		}
		from := 0
		if j > 0 {
			from = p.blocks[j-1].deltas
		}
		for _, d := range p.deltas[from:block.deltas] {
			rule, address := p.rules[d.rule], block.start+uint64(d.offset)
			if command(rule) && rule.Param == support.UnwindCommandSignal {
				address--
			}
			if address <= block.end {
				n := &numbers[i][d.rule]
				if *n < 0 {
					*n = e.number(rule)
				}
				e.add(address, *n)
			}
		}
		before = block
	})
	if before != nil {
		finish()
	}
	if len(e.rules) > maxRules || e.count > maxEntries || e.pages() > maxPages {
		return nil, errTooLarge
	}
	return e.encode(), nil
}

// join returns how a rule and the next one make one, 0 if they do not.
func join(a, b sdtypes.StackDelta) uint8 {
	gap := b.Offset - a.Offset
	if command(a.Info) || gap < 1 || gap > 2 ||
		a.Info.BaseReg != b.Info.BaseReg || a.Info.AuxBaseReg != b.Info.AuxBaseReg || a.Info.AuxParam != b.Info.AuxParam {
		return 0
	}
	switch b.Info.Param - a.Info.Param {
	case 8:
		return uint8(gap)
	case -8:
		return uint8(gap) | support.MergeOpcodeNegative
	}
	return 0
}

func (t *table) encode() []byte {
	b := make([]byte, 0, len(t.entries)+16*len(t.rules)+64)
	b = binary.AppendUvarint(b, t.start)
	b = binary.AppendUvarint(b, t.end-t.start)
	b = binary.AppendUvarint(b, uint64(len(t.rules)))
	for _, r := range t.rules {
		b = append(b, r.Flags, r.BaseReg, r.AuxBaseReg, r.MergeOpcode)
		b = binary.AppendVarint(b, int64(r.Param))
		b = binary.AppendVarint(b, int64(r.AuxParam))
	}
	b = binary.AppendUvarint(b, uint64(t.count))
	return append(b, t.entries...)
}

// decodeTable returns the table that encode encoded, which refers to b. Whether
// each entry is sound is known after write.
func decodeTable(b []byte) (*table, error) {
	d := decoder{rest: b}
	t := &table{start: d.unsigned(math.MaxUint64)}
	t.end = t.start + d.unsigned(maxPages<<support.StackDeltaPageBits)
	for n := d.unsigned(maxRules); n > 0 && d.err == nil; n-- {
		r := d.bytes(4)
		t.rules = append(t.rules, sdtypes.UnwindInfo{Flags: r[0], BaseReg: r[1], AuxBaseReg: r[2], MergeOpcode: r[3], Param: d.signed(), AuxParam: d.signed()})
	}
	t.count = int(d.unsigned(maxEntries))
	t.entries = d.rest
	if d.err != nil || t.end < t.start || t.pages() > maxPages || len(t.entries) < 2*t.count {
		return nil, errTable
	}
	return t, nil
}

type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) unsigned(most uint64) uint64 {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 || n > most {
		d.err = errTable
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) signed() int32 {
	n, size := binary.Varint(d.rest)
	if size <= 0 || n != int64(int32(n)) {
		d.err = errTable
		return 0
	}
	d.rest = d.rest[size:]
	return int32(n)
}

func (d *decoder) bytes(n int) []byte {
	if len(d.rest) < n {
		d.err = errTable
		return make([]byte, n)
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

// pages returns how many pages the table's code lies in.
func (t *table) pages() uint64 {
	return t.end>>support.StackDeltaPageBits - t.start>>support.StackDeltaPageBits + 1
}

// stride is the distance of an array's elements in a BPF map, in bytes.
const stride = 8

// write writes the entries as struct StackDelta, each at a stride, to the pieces of memory that next
// returns, and returns how many lie in each page. numbers are the kernel side's of the rules.
func (t *table) write(next func() ([]byte, error), numbers []uint16) (perPage []uint16, err error) {
	if len(numbers) != len(t.rules) {
		return nil, errTable
	}
	var to []byte
	perPage = make([]uint16, t.pages())
	first := t.start >> support.StackDeltaPageBits
	at, rest := t.start, t.entries
	for range t.count {
		var step, rule uint64
		// Nearly all take a byte each.
		if len(rest) >= 2 && rest[0]|rest[1] < 0x80 {
			step, rule, rest = uint64(rest[0]), uint64(rest[1]), rest[2:]
		} else {
			var a, b int
			if step, a = binary.Uvarint(rest); a <= 0 {
				return nil, errTable
			}
			if rule, b = binary.Uvarint(rest[a:]); b <= 0 {
				return nil, errTable
			}
			rest = rest[a+b:]
		}
		if step > t.end-at || rule >= uint64(len(numbers)) {
			return nil, errTable
		}
		at += step
		page := at>>support.StackDeltaPageBits - first
		if perPage[page]++; perPage[page] == 0 {
			return nil, errTable
		}
		if len(to) < stride {
			if to, err = next(); err != nil {
				return nil, err
			}
			if len(to) < stride {
				return nil, errTable
			}
		}
		binary.NativeEndian.PutUint16(to, uint16(at))
		binary.NativeEndian.PutUint16(to[2:], numbers[rule])
		to = to[stride:]
	}
	if len(rest) > 0 {
		return nil, errTable
	}
	return perPage, nil
}
