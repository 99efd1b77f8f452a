/* SPDX-License-Identifier: GPL-2.0 */
/* The unwind, frame by frame. Each step is a global function, which the verifier
 * walks once and by itself (Linux 5.6), so the number of frames is bounded by
 * a plain loop and not by what the verifier or the tail calls can bear. */
#ifndef GM_UNWIND_STEPS_H
#define GM_UNWIND_STEPS_H

/* Steps of one unwind: UW_ROUNDS times UW_STEPS. */
#define UW_ROUNDS 128
#define UW_STEPS 64
/* A frame that the frame pointer shows is no larger. */
#define UW_FRAME_SIZE (1 << 20)

/* Beside the unwinder's errors (errors.h): the stack has an end, and Python frames
 * were met nowhere on it. */
#define UW_ERR_PYTHON_LEFT 9001

/* uw_push keeps one more frame. */
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

gm_inline void uw_stop(struct unwind *u, u32 error)
{
	u->step = UW_STOP;
	if (error)
		u->error = error;
}

/* uw_resolve finds out in what code state->pc lies, and so the next step. */
gm_inline ErrorCode uw_resolve(struct unwind *u)
{
	int program = PROG_UNWIND_STOP;
	ErrorCode error = get_next_unwinder_after_native_frame(&u->record, &program);
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

/* uw_step takes one step, and returns 0 after the last. */
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
	for (u32 i = 0; i < UW_ROUNDS; i++) {
		if (uw_round(slot))
			continue;
		if (!u->error && (u->py_placed < u->py_read || u->py_frame))
			u->error = UW_ERR_PYTHON_LEFT;
		return 0;
	}
	uw_stop(u, ERR_STACK_LENGTH_EXCEEDED);
	return 0;
}

#endif
