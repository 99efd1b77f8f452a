//go:build ignore

/* SPDX-License-Identifier: GPL-2.0 */
/* Complete user stacks. A call's return probe (unwind_exit.bpf.c) ends the call,
 * then runs
 *
 *   gm_unwind_enter   the memo knows the stack: the event goes out at once
 *   gm_unwind_native, gm_unwind_python   in turns
 *   gm_unwind_stop    names the stack by its hash, sends it once, sends the event
 *
 * by tail calls. Whatever fails, the event goes out. */
#include "unwind_hooks.h"

_Static_assert(UW_PROG_ENTER == PROG_GO_LABELS && UW_PROG_NONE == PROG_UNWIND_LUAJIT &&
		       UW_PROG_MAX == NUM_TRACER_PROGS,
	       "unwind_chain.h does not fit this unwinder");
#define UW_ORIGIN 1 /* any but 0 */

/* Deeper chains of Python frames are unwound every time. */
#define UW_PYTHON_FRAMES 96
/* Bytes of a frame and of a code object that are read of each. */
#define UW_PYTHON_FRAME 104
#define UW_PYTHON_CODE 80
/* Words of a stack that are hashed and sent: one for a native frame, three for
 * a Python one. The chain's tail calls allow fewer. */
#define UW_STACK_WORDS 768

/* Incomplete unwinds by the unwinder's error code (errors.h). */
GM_MAP(unwind_errors, GM_MAP_HASH, 512, 0, u32, u64);

const volatile u32 cfg_memo = 1;
const volatile u32 cfg_verify_stacks = 0; /* every how many hits; 0: never */

enum uw_stack_flags {
	UW_STACK_FRAMES = 1,	 /* the words are frames, not addresses */
	UW_STACK_ERROR_SHIFT = 8, /* why the unwind ended early, 0: it did not */
};

gm_inline void uw_count_error(u32 code)
{
	u64 one = 1, *n = bpf_map_lookup_elem(&unwind_errors, &code);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&unwind_errors, &code, &one, BPF_ANY);
}

gm_inline void uw_finish(struct gm_thread *th)
{
	u32 row = th->done.row;
	struct gm_row *r = bpf_map_lookup_elem(&rows, &row);
	if (r)
		gm_finish(th, r);
}

gm_inline void uw_fall_back(struct pt_regs *ctx, struct gm_thread *th, u32 why)
{
	uw_count(why);
	gm_stack_fp(ctx, th);
	uw_finish(th);
}

/* uw_python_hash folds into u->seed all that the unwinder's process_python_frame
 * depends on, for each of the thread's Python frames. */
gm_inline void uw_python_hash(struct unwind *u)
{
	u32 pid = u->key.pid;
	u64 h = 0;
	void *frame = NULL;
	u->seed = 0;
	const PyProcInfo *py = bpf_map_lookup_elem(&py_procs, &pid);
	if (!py)
		return;
	ErrorCode err = get_PyFrame(py, &frame);
	if (err) {
		/* A thread without Python: the unwind would fail alike. */
		u->seed = err;
		return;
	}
	/* The masks are for the verifier; a structure that they would change is
	 * larger than what is read. */
	u64 f_code = py->PyFrameObject_f_code & 127, f_back = py->PyFrameObject_f_back & 127;
	u64 f_lasti = py->PyFrameObject_f_lasti & 127, f_entry = py->PyFrameObject_entry_member & 127;
	u64 args = py->PyCodeObject_co_argcount & 127, kwargs = py->PyCodeObject_co_kwonlyargcount & 127;
	u64 flags = py->PyCodeObject_co_flags & 127, line = py->PyCodeObject_co_firstlineno & 127;
	u64 entry = py->lasti_is_codeunit ? 0xff : 0;
	u64 frame_room = UW_PYTHON_FRAME - 8, code_room = UW_PYTHON_CODE - 4;
	u->keep_out |= ((frame_room - f_code) | (frame_room - f_back) | (frame_room - f_lasti) |
			(frame_room - f_entry) | (code_room - args) | (code_room - kwargs) |
			(code_room - flags) | (code_room - line)) >> 63;

	PythonUnwindScratchSpace *s = &u->record.pythonUnwindScratch;
	for (u32 i = 0; i < UW_PYTHON_FRAMES; i++) {
		if (!frame)
			break;
		if (bpf_probe_read_user(s->frame, UW_PYTHON_FRAME, frame))
			break;
		u64 code = *(u64 *)&s->frame[f_code];
		frame = *(void **)&s->frame[f_back];
		h = gm_mix(h, code);
		h = gm_mix(h, *(u64 *)&s->frame[f_lasti] ^ (s->frame[f_entry] & entry) << 56);
		if (!code || code == py->noneStructAddr)
			continue;
		if (bpf_probe_read_user(s->code, UW_PYTHON_CODE, (void *)code)) {
			u->keep_out = 1;
			break;
		}
		h = gm_mix(h, *(u32 *)&s->code[args] | (u64)*(u32 *)&s->code[line] << 32);
		h = gm_mix(h, *(u32 *)&s->code[kwargs] | (u64)*(u32 *)&s->code[flags] << 32);
	}
	if (frame)
		u->keep_out = 1;
	u->seed = h;
}

SEC("uretprobe")
int gm_unwind_enter(struct pt_regs *ctx)
{
	struct gm_thread *th = gm_thread_get(false);
	if (!th) {
		gm_count(GM_LOSS_NO_THREAD);
		return 0;
	}
	struct unwind *u = uw_get(GM_STORAGE_CREATE);
	if (!u) {
		uw_fall_back(ctx, th, UW_NO_RECORD);
		return 0;
	}
	uw_begin(u, th, ctx);
	if (cfg_memo) {
		uw_python_hash(u);
		u->key.path = u->seed;
		u64 stack = u->keep_out ? 0 : uw_find(u);
		if (stack) {
			u64 nth = uw_count(UW_MEMO_HIT);
			if (!cfg_verify_stacks || nth % cfg_verify_stacks) {
				th->ev.stack = stack;
				uw_finish(th);
				return 0;
			}
			u->expect = stack;
		}
	}
	collect_trace(ctx, UW_ORIGIN, u->key.pid, th->ev.tid, th->ev.time, 0);
	/* It comes back only without an unwind. */
	uw_fall_back(ctx, th, UW_UNKNOWN_PROCESS);
	return 0;
}

SEC("uretprobe")
int gm_unwind_stop(struct pt_regs *ctx)
{
	struct gm_thread *th = gm_thread_get(false);
	struct unwind *u = uw_get(0);
	if (!th || !u) {
		gm_count(GM_LOSS_NO_THREAD);
		return 0;
	}
	/* It goes nowhere. A program with a tail call does not get a stack that
	 * belongs to the CPU (Linux 6.13, BPF_PRIV_STACK_MIN_SIZE): a uprobe's
	 * program may be preempted by another thread's. */
	bpf_tail_call(ctx, &unwind_progs, UW_PROG_NONE);
	u32 n = u->record.trace.frame_data_len;
	u32 error = u->record.state.unwind_error;
	if (u->record.state.error_metric == metricID_UnwindNativeErrWrongTextSection)
		report_pid(ctx, (u64)u->key.pid << 32 | th->ev.tid, RATELIMIT_ACTION_DEFAULT);
	if (!n) {
		uw_count_error(error);
		uw_fall_back(ctx, th, UW_EMPTY);
		return 0;
	}
	if (n > UW_STACK_WORDS) {
		uw_count(UW_TOO_LONG);
		n = UW_STACK_WORDS;
		u->keep_out = 1;
	}
	uw_count(UW_UNWOUND);
	if (error) {
		uw_count(UW_INCOMPLETE);
		uw_count_error(error);
	}

	u64 id = gm_mix(gm_mix(u->key.pid, u->key.start), error);
	for (u32 i = 0; i < UW_STACK_WORDS; i++) {
		if (i >= n)
			break;
		id = gm_mix(id, u->record.trace.frame_data[i]);
	}
	if (!id)
		id = 1;
	/* The record of the stack is laid over the fields in front of the frames:
	 * the unwind is over, and nobody reads those any more. */
	struct gm_stack *s = (void *)u + __builtin_offsetof(struct unwind, record.trace.frame_data) -
			     __builtin_offsetof(struct gm_stack, words);
	bool sent = gm_send(th, s, id, n, UW_STACK_WORDS, UW_STACK_FRAMES | error << UW_STACK_ERROR_SHIFT);
	if (!sent)
		uw_count(UW_NOT_SENT);

	if (u->expect) {
		uw_count(UW_VERIFIED);
		if (u->expect != id)
			uw_count(UW_MISMATCH);
	} else if (cfg_memo) {
		if (sent && !error && !u->keep_out && u->entry.words <= UW_WORDS)
			uw_keep(u, id);
		else
			uw_count(UW_NOT_KEPT);
	}
	th->ev.stack = id;
	uw_finish(th);
	return 0;
}
