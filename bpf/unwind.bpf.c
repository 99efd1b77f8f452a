//go:build ignore

/* SPDX-License-Identifier: GPL-2.0 */
/* The return probe that captures complete stacks. It ends the call and finds its stack in
 * the memo (unwind_memo.h), or by a full unwind (unwind_steps.h). The event is sent even if
 * all of that fails. */
#include "unwind_hooks.h"
#include "unwind_steps.h"
#include "unwind_copy.h"
#include "unwind_texts.h"

/* internal/source/unwind/stats.go names them in the same order. */
enum uw_stat {
	UW_MEMO_HIT,
	UW_UNWOUND,
	UW_INCOMPLETE,
	UW_TRUNCATED,
	UW_COPIED,
	UW_NOT_COPIED,
	UW_UNKNOWN_PROCESS,
	UW_NO_ROOM,
	UW_NOT_SENT,
	UW_NOT_STORED,
	UW_VERIFIED,
	UW_MISMATCH,
	UW_STAT_MAX,
};

GM_MAP(unwind_stats, GM_MAP_ARRAY, UW_STAT_MAX, 0, u32, u64);

const volatile u32 cfg_memo = 1;
const volatile u32 cfg_verify_stacks = 0; /* every how many hits; 0: never */

enum uw_stack_flags {
	UW_STACK_FRAMES = 1,	  /* the words are struct unwind_frame, not addresses */
	UW_STACK_ERROR_SHIFT = 8, /* why the unwind ended early, 0: it did not */
};

gm_inline u64 uw_count(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&unwind_stats, &what);
	if (!n)
		return 0;
	__sync_fetch_and_add(n, 1);
	return *n;
}

/* uw_report requests the analysis of a process with unknown code. */
gm_inline void uw_report(u32 pid, u32 tid)
{
	u64 key = (u64)pid << 32 | tid;
	bool value = true;
	if (!pid_event_ratelimit(pid, RATELIMIT_ACTION_DEFAULT))
		bpf_map_update_elem(&pid_events, &key, &value, BPF_ANY);
}

/* uw_begin prepares the slot for a search of the memo. */
gm_inline void uw_begin(struct unwind *u, u32 slot, struct gm_thread *th, struct pt_regs *ctx)
{
	u32 pid = th->ev.pid;
	struct unwind_process *process = bpf_map_lookup_elem(&unwind_processes, &pid);
	u->slot = slot;
	u->user = th->ev.user;
	u->start = th->ev.start;
	u->key.pid = pid;
	u->key.mappings = process ? process->mappings : 0;
	u->sp = ctx->sp;
#if defined(__x86_64__)
	u->ip = ctx->ip;
	u->fp = ctx->bp;
#else
	u->ip = normalize_pac_ptr(ctx->pc);
	u->fp = ctx->regs[29];
#endif
	u->unfit = !process | (u->sp & 7);
	u->expect = u->id = 0;
	u->top = th->top;
	u->py_low = th->py_low;
	uw_hidden(slot);
	uw_no_pages(u);
	uw_near(u);
	uw_python_begin(u, process);
	uw_python_start(u);
}

/* uw_prepare prepares the slot for a full unwind. */
gm_inline void uw_prepare(struct unwind *u, struct gm_thread *th, struct pt_regs *ctx)
{
	__builtin_memset(&u->record.state, 0, sizeof(u->record.state));
	u->error = copy_state_regs(&u->record.state, ctx, false);
	u->unfit |= u->error;
	u->begin = u->record.state;
	u->record.trace.pid = u->key.pid;
	u->record.unwindersDone = 0;
	u->tid = th->ev.tid;
	u->frames = 0;
	u->copy_size = 0;
	u->words = 0;
	u->fp_off = UW_OFF_FP;
	u->fp_val = u->fp;
	u->fp_fresh = 1;
	u->fp_bad = 0;
}

#define UW_HASH_FRAMES 64 /* of one part */
#define UW_HASH_PARTS ((UW_LEAF_FRAMES + UW_ROOT_FRAMES) / UW_HASH_FRAMES)

/* uw_hash_part mixes one part of the frames into u->id. It returns 0 with the last. */
__attribute__((noinline)) u32 uw_hash_part(u32 slot, u32 part)
{
	struct unwind *u = uw_slot(slot);
	if (!u || part >= UW_HASH_PARTS)
		return 0;
	struct unwind_frame *f = (struct unwind_frame *)u->record.trace.frame_data + part * UW_HASH_FRAMES;
	u64 h = u->id, before = part * UW_HASH_FRAMES, n = u->frames;
	for (u32 i = 0; i < UW_HASH_FRAMES; i++) {
		if (before + i >= n)
			break;
		h = gm_mix(gm_mix(h, f[i].what), f[i].more);
	}
	u->id = h;
	return before + UW_HASH_FRAMES < n;
}

/* uw_hash computes the stack's id from its recorded frames. */
__attribute__((noinline)) u32 uw_hash(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u64 h = gm_mix(gm_mix(u->key.pid, u->start), (u64)u->error << 32 | u->frames);
	u->id = gm_mix(h, u->py_hash); /* it distinguishes code objects that had the same address */
	for (u32 i = 0; i < UW_HASH_PARTS; i++)
		if (!uw_hash_part(slot, i))
			break;
	u->id = u->id ?: 1;
	return 0;
}

/* uw_send sends the stack, unless user space has it. It returns 0 if there is no room. */
__attribute__((noinline)) u32 uw_send(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	/* The record overwrites the fields in front of the frames, which nothing reads after
	 * the unwind. */
	struct gm_stack *s = (void *)u + __builtin_offsetof(struct unwind, record.trace.frame_data) -
			     __builtin_offsetof(struct gm_stack, words);
	const u32 most = UW_LEAF_FRAMES + UW_ROOT_FRAMES;
	s->id = u->id;
	s->start = u->start;
	s->user = u->user;
	s->pid = u->key.pid;
	s->frames = u->frames;
	return gm_send(s, 2 * u->frames, 2 * most, UW_STACK_FRAMES | u->error << UW_STACK_ERROR_SHIFT);
}

/* uw_counts counts how the unwind came out. */
gm_inline void uw_counts(struct unwind *u)
{
	if (u->error)
		uw_count(UW_INCOMPLETE);
	if (u->frames > UW_LEAF_FRAMES + UW_ROOT_FRAMES)
		uw_count(UW_TRUNCATED);
}

/* uw_tables returns whether an unwind ended because of tables that an analysis of the
 * process may bring. */
gm_inline bool uw_tables(u32 error)
{
	return error == ERR_NATIVE_NO_PID_PAGE_MAPPING || error == ERR_NATIVE_LOOKUP_TEXT_SECTION ||
	       error == ERR_NATIVE_LOOKUP_STACK_DELTA_OUTER_MAP ||
	       error == ERR_NATIVE_LOOKUP_STACK_DELTA_INNER_MAP;
}

/* uw_full unwinds the stack, sends it, and stores it in the memo. */
gm_inline void uw_full(struct unwind *u, u32 slot)
{
	bool known = pid_information(u->key.pid);
	if (known)
		uw_unwind(slot);
	if (!known || uw_tables(u->error)) {
		uw_report(u->key.pid, u->tid);
		uw_save_texts(slot);
		if (uw_copy(slot)) {
			uw_count(UW_COPIED);
			return;
		}
		uw_count(UW_NOT_COPIED);
	}
	if (!known) {
		uw_count(UW_UNKNOWN_PROCESS);
		return;
	}
	uw_count(UW_UNWOUND);
	uw_counts(u);
	uw_hash(slot);
	if (!bpf_map_lookup_elem(&stacks_seen, &u->id))
		uw_save_texts(slot);
	bool sent = uw_send(slot);
	if (!sent)
		uw_count(UW_NOT_SENT);
	if (u->expect) {
		uw_count(UW_VERIFIED);
		if (u->expect != u->id)
			uw_count(UW_MISMATCH);
	} else if (cfg_memo) {
		if (sent && !u->error && !u->unfit && u->words <= UW_WORDS)
			uw_store(slot);
		else
			uw_count(UW_NOT_STORED);
	}
}

/* uw_capture sets th->ev.stack to the stack of the call that returns at ctx, or leaves 0. */
gm_inline void uw_capture(struct pt_regs *ctx, struct gm_thread *th)
{
	u32 slot = uw_acquire();
	struct unwind *u = uw_slot(slot);
	if (!u) {
		uw_count(UW_NO_ROOM);
		return;
	}
	uw_begin(u, slot, th, ctx);
	uw_python_all(slot);
	u->seed = gm_mix(gm_mix(gm_mix(u->py_hash, u->ip), u->sp), (u64)u->key.mappings << 32 | u->key.pid);
	u64 stack = cfg_memo && !u->unfit ? uw_find(slot) : 0;
	if (stack) {
		u64 nth = uw_count(UW_MEMO_HIT);
		u->expect = cfg_verify_stacks && nth % cfg_verify_stacks == 0 ? stack : 0;
		u->id = stack;
	}
	th->top = u->top;
	if (u->py_first)
		th->py_low = u->py_low_next;
	if (!stack || u->expect) {
		uw_prepare(u, th, ctx);
		uw_full(u, slot);
	}
	th->ev.stack = u->id;
	uw_release(u);
}

SEC("uretprobe")
int gm_call_exit_unwind(struct pt_regs *ctx)
{
	gm_task_stack(ctx, &unwind_nowhere);
	struct gm_row *row;
	struct gm_thread *th = gm_leave(ctx, &row);
	if (!th)
		return cfg_session;
	if (th->want_stack) {
		uw_capture(ctx, th);
		if (!th->ev.stack)
			gm_stack_fp(ctx, th);
	}
	gm_finish(th, row);
	return cfg_session;
}

/* gm_unwind_copy unwinds a copy (struct unwind_copy), and sends the stack under the id
 * that uw_copy gave it. User space runs it (BPF_PROG_TEST_RUN), one run at a time, with
 * the address of a copy in its own memory. It returns 0, or -1 if nothing was sent. */
SEC("raw_tp/gm_unwind_copy")
int gm_unwind_copy(u64 *args)
{
	u32 slot = uw_acquire();
	struct unwind *u = uw_slot(slot);
	if (!u)
		return -1;
	s32 result = -1;
	u->slot = slot;
	u->error = u->frames = 0;
	u->unfit = u->words = 0;
	u->py_frame = u->py_placed = u->py_done = u->py_late = 0;
	u->record.unwindersDone = 0;
	if (uw_paste(u, args[0])) {
		u->record.trace.pid = u->key.pid;
		u->sp = u->record.state.sp;
		u->fp_off = UW_OFF_FP;
		u->fp_bad = 0;
		uw_unwind(slot);
		if (u->error == ERR_NATIVE_PC_READ)
			u->error = UW_ERR_NOT_COPIED;
		uw_counts(u);
		if (uw_send(slot))
			result = 0;
		else
			uw_count(UW_NOT_SENT);
	}
	uw_release(u);
	return result;
}
