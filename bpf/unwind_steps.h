/* SPDX-License-Identifier: GPL-2.0 */
/* The unwind, frame by frame. Each step is a global function, which the verifier checks
 * once and separately (Linux 5.6). So a plain loop bounds the number of frames, and not the
 * verifier or the limit of tail calls. */
#ifndef GM_UNWIND_STEPS_H
#define GM_UNWIND_STEPS_H

/* Steps of one unwind: UW_ROUNDS times UW_STEPS. */
#define UW_ROUNDS 128
#define UW_STEPS 64
/* The largest frame that a frame pointer may show. */
#define UW_FRAME_SIZE (1 << 20)
#define UW_BUSY (-16)	   /* EBUSY */

/* uw_push records one more frame. */
gm_inline void uw_push(struct unwind *u, u64 flags, u64 address, u64 more)
{
	u32 i = u->frames++;
	if (i >= UW_LEAF_FRAMES)
		i = UW_LEAF_FRAMES + ((i - UW_LEAF_FRAMES) & (UW_ROOT_FRAMES - 1));
	struct unwind_frame *f = (void *)u->record.trace.frame_data;
	f[i].what = flags << UW_FRAME_SHIFT | address;
	f[i].more = more;
}

#include "unwind_python.h"

/* uw_stop ends the native walk. The Python frames that are left follow it. */
gm_inline void uw_stop(struct unwind *u, u32 error)
{
	u->step = UW_STOP;
	if (error)
		u->error = error;
	uw_python_late(u);
}

/* uw_unmapped chooses the next step for code outside the known mappings. Code that the
 * program generated has no table: UW_STRANGER is the step. For code of a file a later
 * analysis may bring a table: ERR_NATIVE_NO_PID_PAGE_MAPPING. Any other address is not
 * code. A copy is unwound after the analysis: there all such code is a stranger. */
gm_inline ErrorCode uw_unmapped(struct unwind *u)
{
	if (!u->copy_size) {
		if (!vma_lookup_enabled)
			return ERR_NATIVE_NO_PID_PAGE_MAPPING;
		VMAInfo vma = {};
		long err = bpf_find_vma(bpf_get_current_task_btf(), u->record.state.pc,
					find_vma_callback, &vma, 0);
		if (err == UW_BUSY)
			return ERR_NATIVE_NO_PID_PAGE_MAPPING;
		if (err || !vma.executable)
			return ERR_NATIVE_NON_EXECUTABLE_VMA;
		if (!vma.anonymous)
			return ERR_NATIVE_NO_PID_PAGE_MAPPING;
	}
	u->step = UW_STRANGER;
	return ERR_OK;
}

/* uw_resolve finds the code at state->pc, and with it the next step. */
gm_inline ErrorCode uw_resolve(struct unwind *u)
{
	int program = PROG_UNWIND_STOP;
	ErrorCode error = get_next_unwinder_after_native_frame(&u->record, &program);
	if (error == ERR_NATIVE_NO_PID_PAGE_MAPPING)
		return uw_unmapped(u);
	if (error)
		return error;
	u->step = program == PROG_UNWIND_PYTHON ? UW_INTERPRETER : UW_NATIVE;
	return ERR_OK;
}

__attribute__((noinline)) u32 uw_native(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	UnwindState *state = &u->record.state;
	bool stop = false;
	uw_push(u, state->return_address ? UW_FRAME_RETURN : 0, state->pc, 0);
	ErrorCode error = unwind_one_frame(&u->record, &stop);
	if (!error && !stop)
		error = uw_resolve(u);
	if (error || stop)
		uw_stop(u, error);
	return 0;
}

/* uw_stranger follows the frame pointer out of code without a table. */
__attribute__((noinline)) u32 uw_stranger(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	UnwindState *state = &u->record.state;
	uw_push(u, UW_FRAME_GUESSED | (state->return_address ? UW_FRAME_RETURN : 0), state->pc, 0);
	u64 fp = state->fp;
	ErrorCode error = ERR_NATIVE_UNSUPPORTED_MAPPING;
	if (fp >= state->sp && fp - state->sp < UW_FRAME_SIZE && !(fp & 7) &&
	    unwinder_unwind_frame_pointer(state))
		error = uw_resolve(u);
	if (error)
		uw_stop(u, error);
	return 0;
}

/* uw_step does one step, and returns 0 after the last. */
__attribute__((noinline)) u32 uw_step(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	switch (u->step) {
	case UW_NATIVE:
		uw_native(slot);
		return 1;
	case UW_INTERPRETER:
		uw_python(slot);
		return 1;
	case UW_STRANGER:
		uw_stranger(slot);
		return 1;
	}
	return 0;
}

__attribute__((noinline)) u32 uw_round(u32 slot)
{
	for (u32 i = 0; i < UW_STEPS; i++)
		if (!uw_step(slot))
			return 0;
	return 1;
}

/* uw_unwind unwinds from the registers in the slot's state on. */
__attribute__((noinline)) u32 uw_unwind(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	ErrorCode error = u->error ?: uw_resolve(u);
	if (error)
		uw_stop(u, error);
	for (u32 i = 0; i < UW_ROUNDS; i++)
		if (!uw_round(slot))
			return 0;
	u->error = ERR_STACK_LENGTH_EXCEEDED;
	return 0;
}

#endif
