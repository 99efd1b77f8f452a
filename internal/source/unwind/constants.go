package unwind

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"go.opentelemetry.io/ebpf-profiler/pacmask"
)

// systemConstants are the properties of this system that the unwinder's programs need
// (tracer.SysConfigVars). The place of a thread's registers on its kernel stack is not among
// them, because a uprobe has them.
func systemConstants(types *btf.Cache) (map[string]any, error) {
	kernel, err := types.Kernel()
	if err != nil {
		return nil, fmt.Errorf("read kernel types: %w", err)
	}
	threadPointer := "thread.fsbase"
	if runtime.GOARCH == "arm64" {
		threadPointer = "thread.uw.tp_value"
	}
	tpbase, err := offset(kernel, "task_struct", threadPointer)
	if err != nil {
		return nil, err
	}
	constants := map[string]any{
		"tpbase_offset":    uint64(tpbase),
		"inverse_pac_mask": ^pacmask.GetPACMask(),
	}
	// They show what code outside the analysed mappings is.
	file, fileErr := offset(kernel, "vm_area_struct", "vm_file")
	flags, flagsErr := offset(kernel, "vm_area_struct", "vm_flags")
	if flagsErr != nil {
		flags, flagsErr = offset(kernel, "vm_area_struct", "__vm_flags")
	}
	if fileErr == nil && flagsErr == nil && features.HaveProgramHelper(ebpf.Kprobe, asm.FnFindVma) == nil {
		constants["vma_lookup_enabled"] = true
		constants["vma_vm_file_offset"] = file
		constants["vma_vm_flags_offset"] = flags
	}
	return constants, nil
}

// offset returns how many bytes into the named structure the member at the
// dotted path is.
func offset(kernel *btf.Spec, structure, path string) (uint32, error) {
	var in *btf.Struct
	if err := kernel.TypeByName(structure, &in); err != nil {
		return 0, fmt.Errorf("kernel's struct %s: %w", structure, err)
	}
	var off uint32
	var t btf.Type = in
	for name := range strings.SplitSeq(path, ".") {
		m, at, ok := member(t, name)
		if !ok {
			return 0, fmt.Errorf("kernel's struct %s has no %s", structure, path)
		}
		off += at
		t = m.Type
	}
	return off, nil
}

// member finds a member, and its offset, in a structure or in the unnamed ones
// inside.
func member(t btf.Type, name string) (btf.Member, uint32, bool) {
	var members []btf.Member
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		members = t.Members
	case *btf.Union:
		members = t.Members
	}
	for _, m := range members {
		if m.Name == name {
			return m, m.Offset.Bytes(), true
		}
		if m.Name != "" {
			continue
		}
		if in, at, ok := member(m.Type, name); ok {
			return in, m.Offset.Bytes() + at, true
		}
	}
	return btf.Member{}, 0, false
}
