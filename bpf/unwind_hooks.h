/* SPDX-License-Identifier: GPL-2.0 */
/* The unwinders of go.opentelemetry.io/ebpf-profiler, compiled as a chain of
 * our own. Their sources are included from the module cache and stay as they
 * are; they fill their maps from their own Go side, and the loader gives both
 * the same maps by name. Five of the names that they use mean something else
 * here:
 *
 *   per_cpu_records      one record for each thread, so that a preempted
 *                        unwind needs no guard
 *   bpf_probe_read_user  also writes down what was read (the memo's words),
 *                        and puts back the return addresses that pending
 *                        uretprobes hide
 *   unwind_info_array    also says when a frame pointer is used
 *   py_procs             has an offset that the unwinder does not know
 *   push_native          keeps the absolute address in place of file and offset
 */
#ifndef GM_UNWIND_HOOKS_H
#define GM_UNWIND_HOOKS_H

#if defined(__TARGET_ARCH_x86)
#define __x86_64__ 1
#define __x86_64 1
#else
#define __aarch64__ 1
#endif

#include "bpfdefs.h"
#include "frametypes.h"
#include "types.h"

#undef DEBUG_PRINT
#define DEBUG_PRINT(...) ((void)0)

#include "gpumemtrace.h"
#include "unwind_chain.h"
#include "unwind_memo.h"

#define perf_progs unwind_progs
#include "extmaps.h"
struct py_procs_t;

gm_inline void *uw_lookup_any(void *map, void *key)
{
	return bpf_map_lookup_elem(map, key);
}

gm_inline void *uw_lookup_none(void *map, void *key)
{
	return NULL;
}

gm_inline void *uw_lookup_record(void *map, void *key)
{
	struct unwind *u = uw_get(0);
	return u ? &u->record : NULL;
}

gm_inline void *uw_lookup_info(void *map, void *key)
{
	UnwindInfo *info = bpf_map_lookup_elem(map, key);
	struct unwind *u = uw_get(0);
	if (!info || !u)
		return NULL;
	u64 base = info->baseReg, aux = info->auxBaseReg;
	uw_fp_used(u, (((base ^ UNWIND_REG_FP) - 1) | ((aux ^ UNWIND_REG_FP) - 1)) >> 63);
	/* The link register and those after it are known in one frame only. */
	u->keep_out |= ((UNWIND_REG_FP - base) | (UNWIND_REG_FP - aux)) >> 63;
	return info;
}

/* CPython 3.10 does not say where f_lasti is (struct _frame,
 * Include/cpython/frameobject.h), and the unwinder takes it to be at 0. */
gm_inline void *uw_lookup_python(void *map, void *key)
{
	PyProcInfo *py = bpf_map_lookup_elem(map, key);
	if (py && py->version == 0x030a && !py->PyFrameObject_f_lasti)
		py->PyFrameObject_f_lasti = 96;
	return py;
}

gm_inline long uw_read_user(UnwindState *state, void *dst, u32 size, const void *src)
{
	struct unwind *u = (void *)state - __builtin_offsetof(struct unwind, record.state);
	u64 at = (u64)src, *words = dst;

	long err = bpf_probe_read_user(dst, size, src);
	u->keep_out |= err;
	if (size == 8 && dst == &state->fp) {
		uw_fp_loaded(u, at, words[0]);
	} else if (size == 8) {
		words[0] = uw_unhide(u, at, words[0]);
		uw_note(u, at, words[0]);
	} else if (size == 16) { /* a saved frame pointer, then a return address */
		uw_fp_used(u, 1);
		uw_fp_loaded(u, at, words[0]);
		words[1] = uw_unhide(u, at + 8, words[1]);
		uw_note(u, at + 8, words[1]);
	} else { /* a signal frame */
		u->keep_out = 1;
	}
	return err;
}

#define bpf_map_lookup_elem(map, key)                                                              \
	_Generic((map), struct per_cpu_records_t *: uw_lookup_record,                              \
		 struct unwind_info_array_t *: uw_lookup_info,                                     \
		 struct py_procs_t *: uw_lookup_python, struct go_procs_t *: uw_lookup_none,       \
		 default: uw_lookup_any)(map, key)
/* Every reader in these two headers has an UnwindState named state. */
#define bpf_probe_read_user(dst, size, src) uw_read_user(state, dst, size, src)
/* No kernel frames: a call to libcuda comes from user space. */
#define bpf_get_stack(ctx, buf, size, flags) (-1)

#include "tracemgmt.h"
#define increment_metric(id) ((void)0)
#include "native_stack_trace.h"

#undef bpf_get_stack
#undef bpf_probe_read_user

static EBPF_INLINE ErrorCode uw_push_native(UnwindState *state, Trace *trace, bool return_address)
{
	u8 flags = return_address ? FRAME_FLAG_RETURN_ADDRESS : 0;
	if (!push_frame(state, trace, FRAME_MARKER_NATIVE, flags, state->pc, 0))
		return ERR_STACK_LENGTH_EXCEEDED;
	return ERR_OK;
}
#define push_native(state, trace, file, line, return_address)                                      \
	uw_push_native(state, trace, return_address)

/* Of the dispatcher only the maps are wanted; the end of the chain is ours. */
#undef MULTI_USE_FUNC
#define MULTI_USE_FUNC(name)
#include "interpreter_dispatcher.ebpf.c"

#undef MULTI_USE_FUNC
#define MULTI_USE_FUNC(name)                                                                       \
	SEC("uretprobe")                                                                           \
	int gm_##name(struct pt_regs *ctx)                                                         \
	{                                                                                          \
		return name(ctx);                                                                  \
	}
#include "native_stack_trace.ebpf.c"
#include "python_tracer.ebpf.c"

#endif
