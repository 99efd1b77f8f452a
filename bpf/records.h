/* SPDX-License-Identifier: GPL-2.0 */
/* What the programs send to user space, and count as lost. probes/decode.go and
 * probes/loss.go mirror it. */
#ifndef GM_RECORDS_H
#define GM_RECORDS_H

enum gm_record_type {
	GM_CALL = 1,
	GM_STACK = 2,
	GM_FORK = 3,
	GM_EXEC = 4,
	GM_EXIT = 5,
};

#define GM_VALUES 8
#define GM_FRAMES 127

/* One call, or one step of a process's life (v[0], v[1]: the child of a fork;
 * v[2], v[3]: the command name of the child, or of the process). */
struct gm_event {
	u8 type;  /* enum gm_record_type */
	u8 flags; /* enum gm_event_flags */
	u16 user; /* in `users` */
	u16 row;
	u16 outer; /* row of the runtime call around this one, or 0 */
	u64 time;  /* CLOCK_MONOTONIC, ns: entry or return, by the row */
	u64 start; /* the process's start_boottime, ns */
	u32 pid;   /* in the tracer's PID namespace */
	u32 tid;   /* in the same namespace */
	s32 result;
	s32 device; /* CUDA ordinal last seen current on this thread, or -1 */
	u64 ctx;    /* CUcontext current on this thread, or 0 */
	u64 stack;
	u64 v[GM_VALUES]; /* as the row's captures say */
};

enum gm_event_flags {
	GM_EVENT_SHED = 1, /* user space asked for no stack of this process or user */
};

/* A call stack, sent before the first event that names it. */
struct gm_stack {
	u8 type;
	u8 unused;
	u16 user;
	u32 frames; /* of the stack. `words` may hold fewer */
	u64 id;
	u64 start;
	u32 pid;
	u32 flags;
	u64 words[GM_FRAMES];
};

/* The counters of loss. probes/loss.go names them in the same order. */
enum gm_loss {
	GM_LOSS_RING_FULL,
	GM_LOSS_RING_STACK,
	GM_LOSS_NO_THREAD,
	GM_LOSS_CALLS_FULL,
	GM_LOSS_NO_ENTRY,
	GM_LOSS_UNREADABLE,
	GM_LOSS_NO_STACK,
	GM_LOSS_LIST_LONG,
	GM_LOSS_TARGETS_FULL,
	GM_LOSS_NESTED,
	GM_LOSS_SIGNAL_STACK,
	GM_LOSS_MAX,
};

struct {
	__uint(type, GM_MAP_RINGBUF);
	__uint(max_entries, 16 << 20);
} events SEC(".maps");

GM_MAP(loss, GM_MAP_ARRAY, GM_LOSS_MAX, 0, u32, u64);

gm_inline void gm_count(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&loss, &what);
	if (n)
		__sync_fetch_and_add(n, 1);
}

#endif
