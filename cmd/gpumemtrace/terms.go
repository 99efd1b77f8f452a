package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// A term is a word of the output, and what it means in one sentence. docs/terms.md is written from
// these (go test ./cmd/gpumemtrace -run TestDocumentsTerms -update), and so is the manual page.
type term struct{ word, means string }

var terms = []term{
	{"in use", "Memory that the program, or CUDA for it, has taken and not given back yet."},
	{"peak", "The moment at which most memory was in use on GPUs."},
	{"reserved", "What PyTorch's caching allocator has taken from CUDA, for tensors that live and for later ones."},
	{"cached", "Reserved memory that is in no tensor at the moment ([cached, unused]); nvidia-smi counts it as used."},
	{"segment", "A piece of GPU memory that PyTorch's caching allocator took from CUDA, and that it divides among tensors."},
	{"releasable", "Cached memory in segments without any tensor, which torch.cuda.empty_cache() gives back to the GPU."},
	{"fragmented", "Cached memory in segments with live tensors: it is lost to tensors that are larger than its pieces."},
	{"owner", "The library on whose behalf memory was taken: pytorch, nccl, cublas, or the program itself. It is [not named yet] where a name that would show it is still to come, or was lost."},
	{"window", "A short time in which tensors are traced, because to trace all costs more (--tensors-window)."},
	{"holder", "The object of the Python program that keeps a tensor alive, as the path to it (--holders), or [held by C++ alone...], [workspace of cuBLAS], [free in CuPy's pool] or [waits for Numba to free it]."},
	{"kind", "The sort of memory, such as device, tensor, cached, context, pinned host memory or managed memory."},
	{"category", "What a tensor is for: parameter, gradient, optimizer state, activation, input or temporary."},
	{"module", "A layer of a model, or a group of layers: an object of a class such as torch.nn.Linear. --by module puts all of one class together; --by module_path tells them apart (needs --holders)."},
	{"context", "What CUDA takes once for each process on each GPU that the process uses, before the first allocation."},
	{"local memory", "What CUDA takes so that kernels have room for variables that do not fit into registers; it stays until the process ends."},
	{"code", "Kernels that CUDA has loaded onto the GPU."},
	{"driver rounding", "What NVIDIA's kernel driver takes beyond the size that was asked for, because it hands out whole pages."},
	{"host memory", "Memory of the computer, not of the GPU, which the GPU can reach: pinned memory, and CUDA's own ([driver's system memory])."},
	{"with called", "What a row took itself, together with all that it called."},
	{"unexplained", "Memory on a GPU whose cause is not known, such as what was there before the trace (top)."},
	{"rank", "The number of one process among those of a training that several processes run together."},
	{"[stream], [event], [graph], [pool], [video], [graphics], [opencl], [other]", "What CUDA took to make or run these, beyond allocations."},
	{"[calls under way]", "What was taken by calls that had not returned yet."},
	{"[shared, its owner gone]", "Memory that another process made and freed, and that only this process still holds."},
	{"[cuda context and driver]", "All but the allocations, where calls of NVIDIA's kernel driver are not seen."},
	{"[cause not known]", "CUDA took it in a function that neither a probe nor the stack identifies."},
	{"[... before ...]", "What was there before the trace, its window or the file's history began: it has no stack."},
	{"[memory of tensors elsewhere]", "Takes out of the sum what tensors have in managed or imported memory, which is not counted here."},
	{"[not in tensors]", "Memory of no tensor, such as the context or another library's, or of tensors that were not recorded."},
	{"[outside modules]", "The program asked for it while no module of the model ran, as optimizers do."},
	{"[backward pass]", "PyTorch's autograd asked for it, in a thread that runs no line of the program."},
	{"[inside ...]", "A thread of that library, such as NCCL, asked for it: no line of the program led there."},
	{"[not Python]", "No Python code led to it."},
	{"[on no GPU]", "Host memory."},
	{"Torch-Compiled Region: 1/0", "The number of a function that torch.compile compiled, and how often it was compiled again."},
	{"[no ...], [not compiled]", "There is none, or none was recorded."},
	{"[unknown], [not known]", "gpumemtrace could not find it out."},
	{"[anon], [inlined], [python function], [truncated: ...]", "Frames without a name: code that lies in no file, an inlined function, Python's, and those beyond the deepest that are kept."},
	{"[gradients of other tensors], [state of optimizers for no parameter], [buffers], [activations], [other tensors]", "Tensors that belong to no parameter."},
	{"[stack]", "The category follows from the call stack, as no heap was read."},
}

// termsText lists the terms, with what stands before and after each word.
func termsText(before, between, after string) string {
	var out strings.Builder
	for _, t := range terms {
		fmt.Fprintf(&out, "%s%s%s%s%s", before, t.word, between, t.means, after)
	}
	return out.String()
}

// newTerms is a topic of the help: it is no command.
func newTerms() *cobra.Command {
	c := &cobra.Command{Use: "terms", Short: "What the words of the output mean"}
	c.SetHelpFunc(func(c *cobra.Command, _ []string) {
		fmt.Fprintf(c.OutOrStdout(), "%s.\n\n%s", c.Short, termsText("", "\n    ", "\n"))
	})
	return c
}

// newHelp is the command that shows the help of another, or a topic.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND | TOPIC]",
		Short: "Show the help of a command, or of the topic terms: what the words of the output mean",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return unexpected(root, rest[0])
			}
			cmd.InitDefaultHelpFlag()
			cmd.InitDefaultVersionFlag()
			return cmd.Help()
		},
	}
}
