package allocator

import (
	"cmp"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Settings are those of PYTORCH_CUDA_ALLOC_CONF that change where tensors lie, and what
// the program and the GPU add to them. The zero value has PyTorch's defaults.
type Settings struct {
	// Expandable is expandable_segments.
	Expandable bool
	// MaxSplit is max_split_size_mb in bytes: larger blocks are never split. 0 is no limit.
	MaxSplit uint64
	// MaxRounding is max_non_split_rounding_mb in bytes: by how much a block beyond MaxSplit
	// may exceed a request. 0 is as much as LargeSegment.
	MaxRounding uint64
	// Divisions is roundup_power2_divisions: into how many parts each interval between two
	// powers of two is divided, from 1 MiB to 64 GiB. 0 and 1 round to 512 bytes.
	Divisions [16]uint64
	// Threshold is garbage_collection_threshold: the part of Fraction beyond which unused
	// segments are given back. PyTorch ignores it without a Fraction.
	Threshold float64
	// Fraction is what set_per_process_memory_fraction allows, in bytes, 0 for all.
	Fraction uint64
	// LargeSegment is large_segment_size_mb in bytes: what is asked of CUDA for requests from 1
	// to 10 MiB, and by how much an expandable segment grows. 0 is PyTorch's 20 MiB.
	LargeSegment uint64
	// PlainPrivate: private pools have plain segments, though Expandable is set, as in PyTorch
	// 2.1 to 2.4. Later ones have expandable segments there, too.
	PlainPrivate bool
	// NoCaching is PYTORCH_NO_CUDA_MEMORY_CACHING: each tensor is an allocation of CUDA.
	NoCaching bool
	// Limit is how many bytes CUDA can provide for segments, 0 for as many as asked for.
	Limit uint64
	// Upwards: CUDA places segments from low addresses to high ones, as it does where libraries left
	// room between theirs. Of two free blocks of one size PyTorch uses the one at the lower address.
	Upwards bool
	// Sizes says how large requests are of which that is not known.
	Sizes Sizes
	// Memory is what the GPU has, in bytes, 0 if not known: an expandable segment has as
	// many addresses, and an eighth more.
	Memory uint64
}

// Sizes are those of requests that may be smaller than their blocks.
type Sizes uint8

// Request.Units, and the least and the most that a request may have.
const (
	Likely Sizes = iota
	Least
	Most
)

// Set changes the setting that PyTorch calls name, such as "max_split_size_mb", to a
// value as PYTORCH_CUDA_ALLOC_CONF has it.
func (s *Settings) Set(name, value string) error {
	wrong := func(want string) error { return fmt.Errorf("%s:%s: want %s", name, value, want) }
	switch name {
	case "expandable_segments":
		on, err := strconv.ParseBool(value)
		if err != nil {
			return wrong("True or False")
		}
		s.Expandable = on
	case "max_split_size_mb":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n <= largeSegment/mib {
			return wrong("a whole number of MiB above 20")
		}
		s.MaxSplit = n * mib
	case "max_non_split_rounding_mb":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n <= largeSegment/mib {
			return wrong("a whole number of MiB above 20")
		}
		s.MaxRounding = n * mib
	case "large_segment_size_mb":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n < minLarge/mib {
			return wrong("a whole number of MiB, 10 or more")
		}
		s.LargeSegment = n * mib
	case "garbage_collection_threshold":
		x, err := strconv.ParseFloat(value, 64)
		if err != nil || !(x > 0 && x < 1) {
			return wrong("a number between 0 and 1")
		}
		s.Threshold = x
	case "roundup_power2_divisions":
		d, err := parseDivisions(value)
		if err != nil {
			return wrong("a power of two, or a list such as [256:1,512:2,>:4]")
		}
		s.Divisions = d
	default:
		return fmt.Errorf("%s is not a setting that can be tried: want expandable_segments, max_split_size_mb, max_non_split_rounding_mb, large_segment_size_mb, garbage_collection_threshold or roundup_power2_divisions", name)
	}
	return nil
}

var errDivisions = fmt.Errorf("not a power of two")

// parseDivisions parses a number for all intervals, or a list of the largest size in MiB
// and a number, of which ">" is all further ones.
func parseDivisions(value string) (d [16]uint64, err error) {
	number := func(text string) (uint64, error) {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		if err == nil && bits.OnesCount64(n) != 1 {
			err = errDivisions
		}
		return n, err
	}
	list, ok := strings.CutPrefix(value, "[")
	if !ok {
		n, err := number(value)
		for i := range d {
			d[i] = n
		}
		return d, err
	}
	list, ok = strings.CutSuffix(list, "]")
	if !ok {
		return d, errDivisions
	}
	from := 0 // the first interval that has no value yet
	for i, item := range strings.Split(list, ",") {
		size, text, _ := strings.Cut(item, ":")
		n, err := number(text)
		if err != nil {
			return d, err
		}
		if strings.TrimSpace(size) == ">" {
			for ; from < len(d); from++ {
				d[from] = n
			}
			return d, nil
		}
		mb, err := number(size)
		if err != nil {
			return d, err
		}
		index := min(interval(mb*mib), len(d)-1)
		if i == 0 {
			for j := range index {
				d[j] = n
			}
		}
		d[index] = n
		from = index + 1
	}
	return d, nil
}

// interval returns the index of the interval of Settings.Divisions that a size is in.
func interval(size uint64) int {
	return min(max(bits.Len64(size)-bits.Len64(mib), 0), 15)
}

// round returns how many bytes a block for a request has.
func (s *Settings) round(size uint64) uint64 {
	if size < unit {
		return unit
	}
	if n := s.Divisions[interval(size)]; n > 1 && size > unit*n {
		return roundDivision(size, n)
	}
	return (size + unit - 1) / unit * unit
}

// roundDivision rounds up to the next of n equal parts between two powers of two.
func roundDivision(size, n uint64) uint64 {
	if size&(size-1) == 0 {
		return size
	}
	floor := uint64(1) << (bits.Len64(size) - 1)
	part := floor >> (bits.Len64(n) - 1)
	if part == 0 {
		return floor << 1
	}
	return (size + part - 1) &^ (part - 1)
}

// segment returns how many bytes are asked of CUDA where no block fits a request.
func (s *Settings) segment(size uint64) uint64 {
	switch {
	case size <= smallRequest:
		return smallSegment
	case size < minLarge:
		return s.large()
	}
	return (size + largeRound - 1) / largeRound * largeRound
}

// large returns LargeSegment, or what PyTorch has without it.
func (s *Settings) large() uint64 { return cmp.Or(s.LargeSegment, largeSegment) }

// expands reports whether a pool has expandable segments.
func (s *Settings) expands(p *pool) bool {
	return s.Expandable && (p.key.private == 0 || !s.PlainPrivate)
}
