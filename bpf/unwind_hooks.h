/* SPDX-License-Identifier: GPL-2.0 */
/* The unwinders of go.opentelemetry.io/ebpf-profiler, compiled into programs of
 * our own. Their sources are included from the module cache and stay as they
 * are; they fill their maps from their own Go side, and the loader gives both
 * the same maps by name. Four of the names that they use mean something else
 * here:
 *
 *   bpf_probe_read_user  also records the words that were read, for the memo, and
 *                        restores the return addresses that pending uretprobes hide
 *   unwind_info_array    also records that a frame pointer is used
 *   per_cpu_records      is not used: each function here is given its slot
 *   increment_metric     counts nothing */
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

#define gm_step __attribute__((noinline))
#include "gpumemtrace.h"
#include "unwind_slot.h"
#include "unwind_memo.h"

/* The unwinder would chain its programs through this map. Here it is always empty: see
 * gm_task_stack. */
#define perf_progs unwind_nowhere
#include "extmaps.h"

/* For functions of these headers that have no UnwindState. */
static UnwindState *const state = NULL;

gm_inline void *uw_lookup_any(UnwindState *state, void *map, void *key)
{
	return bpf_map_lookup_elem(map, key);
}

gm_inline void *uw_lookup_none(UnwindState *state, void *map, void *key)
{
	return NULL;
}

gm_inline struct unwind *uw_of(UnwindState *state)
{
	return (void *)state - __builtin_offsetof(struct unwind, record.state);
}

gm_inline void *uw_lookup_info(UnwindState *state, void *map, void *key)
{
	UnwindInfo *info = bpf_map_lookup_elem(map, key);
	struct unwind *u = uw_of(state);
	if (!info)
		return NULL;
	u64 base = info->baseReg, aux = info->auxBaseReg;
	uw_fp_used(u, (((base ^ UNWIND_REG_FP) - 1) | ((aux ^ UNWIND_REG_FP) - 1)) >> 63);
	/* The link register and later ones are known in one frame only. */
	u->unfit |= ((UNWIND_REG_FP - base) | (UNWIND_REG_FP - aux)) >> 63;
	return info;
}

gm_inline long uw_read_user(UnwindState *state, void *dst, u32 size, const void *src)
{
	struct unwind *u = uw_of(state);
	u64 at = (u64)src, *words = dst;

	if (u->copy_size) {
		/* Memory outside the copy cannot be read. */
		u64 in = at - u->copy_of, last = in + size - 1;
		u64 missing = u->copy_missing >> (in / UW_PAGE & 63) | u->copy_missing >> (last / UW_PAGE & 63);
		bool there = in < u->copy_size && last < u->copy_size && !(missing & 1);
		src = there ? (void *)(u->copy_at + in) : NULL;
	}
	long err = bpf_probe_read_user(dst, size, src);
	u->unfit |= err;
	if (size == 8 && dst == &state->fp) {
		uw_fp_loaded(u, at, words[0]);
	} else if (size == 8) {
		words[0] = uw_unhide(u, at, words[0]);
		uw_depend(u, at, words[0]);
	} else if (size == 16) { /* a saved frame pointer, then a return address */
		uw_fp_used(u, 1);
		uw_fp_loaded(u, at, words[0]);
		words[1] = uw_unhide(u, at + 8, words[1]);
		uw_depend(u, at + 8, words[1]);
	} else { /* a signal frame */
		u->unfit = 1;
	}
	return err;
}

#define bpf_map_lookup_elem(map, key)                                                              \
	_Generic((map), struct unwind_info_array_t *: uw_lookup_info,                              \
		 struct go_procs_t *: uw_lookup_none, default: uw_lookup_any)(state, map, key)
/* Every reader in these two headers has an UnwindState named state. */
#define bpf_probe_read_user(dst, size, src) uw_read_user(state, dst, size, src)
/* No kernel frames: a call to libcuda comes from user space. */
#define bpf_get_stack(ctx, buf, size, flags) (-1)

#include "tracemgmt.h"
#define increment_metric(id) ((void)0)
#include "native_stack_trace.h"

#undef bpf_get_stack
#undef bpf_probe_read_user

/* The rest only provides maps and types. */
#undef MULTI_USE_FUNC
#define MULTI_USE_FUNC(name)
#include "interpreter_dispatcher.ebpf.c"
#include "native_stack_trace.ebpf.c"
#include "python_tracer.ebpf.c"

#undef bpf_map_lookup_elem

#endif
