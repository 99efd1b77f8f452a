package export

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// atLine names the innermost line of the program that a failed request came from, "" for none.
func atLine(o *snapshot.OutOfMemory) string {
	if _, own := stacks.Own(o.Stack); !own {
		return ""
	}
	sample := &snapshot.Sample{Stack: o.Stack}
	return " at " + innermost(ownLines([]*snapshot.Sample{sample}))(sample)
}

// wanted returns the size of a request that failed: for a framework the tensor's.
func wanted(o *snapshot.OutOfMemory) int64 {
	if o.Tensor > 0 {
		return o.Tensor
	}
	return o.Requested
}

// ownRefusal reports whether PyTorch refused a request without asking the driver.
func ownRefusal(o *snapshot.OutOfMemory) bool {
	return !o.Recovered && o.Calls == 0 && o.Framework != nil
}

// refusal says who refused a request, and how much of the GPU was free.
func refusal(o *snapshot.OutOfMemory) string {
	free, known := freeThen(o)
	switch {
	case o.Recovered:
		return "It recovered: the same thread got as many bytes when it tried again."
	case ownRefusal(o) && o.Private != "": // a pool can have an allocator of its own
		return "PyTorch refused it, without a failed call of the driver: the program's own limit did, or the allocator of the memory pool that was asked."
	case ownRefusal(o) && !known:
		return "The program's own limit refused it: no call of the driver failed for it. How much of the GPU was free is not known."
	case ownRefusal(o) && free < segmentFor(o):
		return fmt.Sprintf("The program's own limit refused it: no call of the driver failed for it. It would not have fitted anyway: %s of the GPU was free.", bytefmt.Format(free))
	case ownRefusal(o):
		return fmt.Sprintf("The program's own limit refused it: no call of the driver failed for it, and %s of the GPU was free.", bytefmt.Format(free))
	}
	text := "The driver refused " + refusedPart(o)
	switch {
	case !known:
		return text + ". How much of the GPU was free is not known."
	case free == 0:
		text = fmt.Sprintf("%s: nothing of the GPU's %s was free.", text, bytefmt.Format(fullGPU(o).Total))
	default:
		text = fmt.Sprintf("%s: %s of the GPU's %s was free.", text, bytefmt.Format(free), bytefmt.Format(fullGPU(o).Total))
	}
	if now := fullGPU(o).Free; now-free > now/100 && o.Again == 0 {
		text += fmt.Sprintf(" When NVIDIA's kernel driver was asked, just after, %s was free: the process had given memory back.", bytefmt.Format(now))
	}
	return text
}

// refusedPart names what the driver refused: the request, the segment that was to serve it, or a
// piece of one.
func refusedPart(o *snapshot.OutOfMemory) string {
	switch {
	case o.Tensor <= 0 || o.Tensor == o.Requested:
		return "it"
	case o.Tensor > o.Requested:
		return fmt.Sprintf("a piece of %s of it", bytefmt.Format(o.Requested))
	}
	return fmt.Sprintf("a segment of %s for it", bytefmt.Format(o.Requested))
}

// limit says what is known of the limit that the program set, "" for nothing. It is less than what
// PyTorch would have held with the request. It can be less than what PyTorch held without it,
// because a limit that is set later gives nothing back.
func limit(o *snapshot.OutOfMemory) string {
	if !ownRefusal(o) || o.Private != "" || o.Tensor <= 0 {
		return ""
	}
	return fmt.Sprintf("The limit is below %s: the %s that PyTorch held, and this request.",
		bytefmt.Format(o.Framework.Reserved+segmentFor(o)), bytefmt.Format(o.Framework.Reserved))
}

// segmentFor returns the most that PyTorch asks for to serve a request, in bytes.
func segmentFor(o *snapshot.OutOfMemory) int64 {
	const page, large = 2 << 20, 20 << 20
	return max((o.Tensor+page-1)/page*page, large)
}

// again says what became of a request that the driver refused.
func again(o *snapshot.OutOfMemory) string {
	switch {
	case o.Recovered && o.GaveBack > 0:
		return fmt.Sprintf("Before that, its caching allocator had given %s back.", bytefmt.Format(o.GaveBack))
	case o.Recovered, ownRefusal(o):
		return ""
	case o.Again > 0:
		who := "The process"
		if o.Framework != nil {
			who = o.Framework.Name
		}
		text := fmt.Sprintf("%s gave %s back and asked again, and was refused again %v after the first time.", who, bytefmt.Format(o.Freed), rounded(o.Again))
		if o.GaveUp > 0 {
			text += fmt.Sprintf(" It gave up %v after that.", rounded(o.GaveUp-o.Again))
		}
		return text
	case o.GaveBack > 0:
		return fmt.Sprintf("The same thread did not get that many bytes soon afterwards, though its caching allocator gave %s back.", bytefmt.Format(o.GaveBack))
	}
	return "The same thread did not get that many bytes soon afterwards."
}

// freeThen returns how much of the GPU that ran out was free when the request failed. NVML was
// asked just after. What the process itself gave back or took in between is known.
func freeThen(o *snapshot.OutOfMemory) (int64, bool) {
	g := fullGPU(o)
	if g == nil {
		return 0, false
	}
	free := g.Free
	own := slices.IndexFunc(g.Processes, func(p snapshot.GPUProcess) bool { return p.PID == o.PID && p.Known })
	then := slices.IndexFunc(o.Snapshot.Accounts, func(a snapshot.Account) bool {
		return a.PID == o.PID && a.GPU == o.GPU && a.Known && !a.Inferred
	})
	if own >= 0 && then >= 0 {
		free += g.Processes[own].Bytes - o.Snapshot.Accounts[then].Total
	}
	return max(free, 0), true
}

// pieces says why a request can fail though more was free.
func pieces(o *snapshot.OutOfMemory) string {
	if free, known := freeThen(o); !known || o.Recovered || o.Calls == 0 || free < o.Requested {
		return ""
	}
	return "The largest contiguous free piece of the GPU is not known, because the driver does not report it."
}

// heldThen says whose the memory was that the process had on the GPU that ran out, "" for none.
func heldThen(o *snapshot.OutOfMemory) string {
	x, samples := &overview{shown: inUse}, thereOf(o)
	parts := x.owners(samples, ownerName)
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("At that moment the process held %s of the GPU: %s.", bytefmt.Format(x.purpose(samples).bytes), strings.Join(parts, "; "))
}
