/* SPDX-License-Identifier: GPL-2.0 */
/* What every program shares: the records that go to user space, the API table
 * as the kernel sees it, and the life of one call from entry to event. */
#ifndef GPUMEMTRACE_H
#define GPUMEMTRACE_H

#include "platform.h"

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
	u32 tid;   /* likewise */
	s32 result;
	s32 device; /* CUDA ordinal last seen current on this thread, or -1 */
	u64 ctx;    /* CUcontext current on this thread, or 0 */
	u64 stack;
	u64 v[GM_VALUES]; /* as the row's captures say */
};

enum gm_event_flags {
	GM_EVENT_SHED = 1, /* no stack was taken, because user space wants none of its process or user */
};

/* A call stack, sent before the first event that names it. */
struct gm_stack {
	u8 type;
	u8 unused;
	u16 user;
	u32 frames; /* of the stack; a deep one has words for fewer */
	u64 id;
	u64 start;
	u32 pid;
	u32 flags;
	u64 words[GM_FRAMES];
};

/* What a probed function is to the kernel side. */
enum gm_class {
	GM_CLASS_OFF,
	GM_CLASS_EMIT,	      /* an event */
	GM_CLASS_AROUND,      /* no event: names the events inside it (outer) */
	GM_CLASS_CAUSE,	      /* no event: names the kernel driver's calls inside it (outer) */
	GM_CLASS_CTX_SET,     /* the rest: no event, keeps the thread's context */
	GM_CLASS_CTX_PUSH,
	GM_CLASS_CTX_POP,
	GM_CLASS_CTX_DEVICE,  /* *arg0 is the current context's device */
	GM_CLASS_DEVICE_SET,  /* arg0 becomes the current device (runtime) */
	GM_CLASS_ESCAPE,      /* an ioctl: the row is that of the kernel driver's call (gm_escape) */
	GM_CLASS_TENSOR,      /* an event at its entry, the only one with a probe (gm_tensor) */
};

enum gm_row_flags {
	GM_ROW_STACK = 1,      /* take a stack, unless it is shed (enum gm_shed) */
	GM_ROW_ENTRY_TIME = 2, /* ordered at entry */
	GM_ROW_SKIP_NULL = 4,  /* a call with argument 0 == 0 means nothing */
	GM_ROW_LIST = 8,       /* argument 0 is an array of argument 1 elements: an event each */
	GM_ROW_PUSHES = 16,    /* on success v[0] is a context that becomes current */
	GM_ROW_NAME = 32,      /* argument 0 is a string: its first 32 bytes are v[0..3] */
	GM_ROW_EXTENT = 64,    /* a cudaExtent by value becomes arguments 4, 5, 6 */
	GM_ROW_CTX_ARG = 128,  /* argument 1 names the context asked about, 0 the current one */
	GM_ROW_POPS = 256,     /* argument 0 is a context that stops being current */
	GM_ROW_ALLOCATES = 512, /* it tells the whole of what is called inside it */
	GM_ROW_FREES = 1024,	/* it tells the whole of such calls inside it */
	GM_ROW_KERNEL = 2048,	/* a call of the kernel driver: `outer` is the function that it was made in */
	GM_ROW_BACKING = 4096,	/* in a function with GM_ROW_BACKED it takes no stack: that function's event has it */
	GM_ROW_POINTER = 8192,	/* argument 6 becomes the pointer at argument 2 + stride */
	GM_ROW_BACKED = 16384,	/* its allocation lies in what the kernel driver hands out inside it */
};

#define GM_LIST_MAX 16

/* How one value is found: the argument itself (size 0), or the 4 or 8 bytes of
 * user memory at argument + off, read when the call returns. Argument 7 is 0. */
struct gm_capture {
	u8 size;
	u8 arg;
	u16 off;
};

struct gm_row {
	u16 class;
	u16 flags;
	u16 stride; /* of a list's elements; the extent's argument on arm64; see GM_ROW_POINTER, gm_tensor */
	u16 unused;
	struct gm_capture cap[GM_VALUES];
};

/* What an ioctl of NVIDIA's kernel driver is, by its number (nv_escape.h): the
 * row whose `is` stands at argument 2 + at, or with `at` 0 the first. */
#define GM_ESCAPE_WAYS 10
struct gm_escape {
	u16 at;
	u16 row[GM_ESCAPE_WAYS];
	u32 is[GM_ESCAPE_WAYS];
};

/* Every way to lose something. probes/loss.go names them in the same order. */
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
	GM_LOSS_ALLOCATORS_FULL,
	GM_LOSS_SAMPLES_FULL,
	GM_LOSS_SIGNAL_STACK,
	GM_LOSS_MAX,
};

#define GM_CALLS 6
#define GM_CTX_DEPTH 8

struct gm_call {
	u64 row;
	u64 escape; /* row of the kernel driver's call, 0 for none */
	u64 time;
	u64 sp; /* at entry */
	u64 args[8]; /* six are filled; eight keep a masked index in bounds */
};

/* A step of a return program: a global function, which the verifier walks once and by
 * itself, where the including program has any. arm64 has none together with tail calls
 * before Linux 6.0. */
#ifndef gm_step
#define gm_step gm_inline
#endif

gm_inline void gm_count(u32 what);

#include "tensors.h"

/* Per-thread state, freed by the kernel with the thread. Because it belongs to
 * the thread it needs no guard against preemption, and because it holds what a
 * program would keep on its stack every program's BPF stack stays small. */
struct gm_thread {
	u64 ids; /* bpf_get_current_pid_tgid() that ev's pid, tid and start are of */
	u32 depth;
	u32 ctx_depth;
	s32 device; /* of the current context, or -1 */
	u32 want_stack;
	u64 sp;		/* of gm_enter: the stack pointer, */
	u64 trampoline; /* gm_trampoline, */
	u64 word;	/* and what stands where a pending call was entered */
	u64 top;	/* the end of the last stack that was found (uw_near) */
	u64 forgotten;	/* when the pending call began that was forgotten last */
	u64 ctx[GM_CTX_DEPTH];
	struct gm_call calls[GM_CALLS];
	struct gm_call done; /* the call that is returning */
	struct gm_tensors tensors;
	struct gm_event ev;
	struct gm_stack stack;
};

struct {
	__uint(type, GM_MAP_RINGBUF);
	__uint(max_entries, 16 << 20);
} events SEC(".maps");

GM_MAP(rows, GM_MAP_ARRAY, 256, 0, u32, struct gm_row);

GM_MAP(escapes, GM_MAP_ARRAY, 256, 0, u32, struct gm_escape);

/* Gates: the probes of one library tell of calls that were entered at this time
 * (CLOCK_MONOTONIC, ns) or later. So they begin and end to tell all at once,
 * however long they take to go on and off. Gate 0 is always open. */
#define GM_GATES 4096
GM_MAP(gates, GM_MAP_ARRAY, GM_GATES, 0, u32, u64);

GM_MAP(loss, GM_MAP_ARRAY, GM_LOSS_MAX, 0, u32, u64);

GM_MAP(threads, GM_MAP_TASK_STORAGE, 0, GM_F_NO_PREALLOC, int, struct gm_thread);

/* Stacks that user space has. An evicted one is sent again. */
GM_MAP(stacks_seen, GM_MAP_LRU_HASH, 65536, 0, u64, u32);

const volatile u32 cfg_pidns_inum = 0; /* the tracer's PID namespace; 0: the initial one */
const volatile u32 cfg_all = 0;	       /* trace every process */
const volatile u32 cfg_follow = 1;     /* trace the children of targets */
const volatile u32 cfg_free_stacks = 0; /* take a stack where a tensor is freed, too */
const volatile u32 cfg_session = 0;	/* probes are attached as sessions (gm_call_enter) */

/* gm_task_stack keeps a program's stack on the task's kernel stack, as every program
 * with a tail call does; `nowhere` is a program array that is always empty. Without one,
 * from Linux 6.13, a stack of 49 bytes or more belongs to the CPU
 * (BPF_PRIV_STACK_MIN_SIZE), where a uprobe's program that is preempted and the next one
 * share it. A program on a raw tracepoint never meets itself so. */
gm_inline void gm_task_stack(void *ctx, void *nowhere)
{
	bpf_tail_call(ctx, nowhere, 0);
}

/* An attach cookie is a row, from bit 16 on a gate, and in bit 63 that the function's
 * return has a probe of its own (gm_cookie_apart). */
gm_inline u32 gm_cookie_row(u64 cookie)
{
	return (u16)cookie;
}

gm_inline u32 gm_cookie_gate(u64 cookie)
{
	return cookie >> 16;
}

gm_inline bool gm_cookie_apart(u64 cookie)
{
	return cookie >> 63;
}

gm_inline void gm_count(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&loss, &what);
	if (n)
		__sync_fetch_and_add(n, 1);
}

#include "users.h"

/* gm_count_no_entry counts a return whose entry is not known, if the call began after its
 * gate was opened. Of a call that was forgotten (gm_enter) the thread knows when it began;
 * any other may have been under way before, unless the gate has been open for long. */
gm_inline void gm_count_no_entry(u32 gate, struct gm_thread *th)
{
	const u64 just = 1000000000; /* ns */
	u64 *since = bpf_map_lookup_elem(&gates, &gate);
	u64 now = bpf_ktime_get_ns();
	if (since && *since < now && (now - *since > just || (th && th->forgotten >= *since)))
		gm_count(GM_LOSS_NO_ENTRY);
}

gm_inline struct task_struct___gm *gm_leader(struct task_struct___gm *task)
{
	struct task_struct___gm *leader;
	gm_read(leader, task->group_leader);
	return leader;
}

/* gm_nr returns a task's number in the tracer's PID namespace, or 0 when it has
 * none there. Of a process's leader that is the PID. */
gm_inline u32 gm_nr(struct task_struct___gm *task)
{
	u32 nr;
	if (!cfg_pidns_inum) {
		gm_read(nr, task->pid);
		return nr;
	}
	struct pid___gm *pid;
	gm_read(pid, task->thread_pid);
	u32 level;
	gm_read(level, pid->level);
	/* MAX_PID_NS_LEVEL is 32. */
	for (u32 i = 0; i < 33; i++) {
		if (i > level)
			break;
		struct pid_namespace___gm *ns;
		u32 inum;
		gm_read(ns, pid->numbers[i].ns);
		gm_read(inum, ns->ns.inum);
		if (inum == cfg_pidns_inum) {
			gm_read(nr, pid->numbers[i].nr);
			return nr;
		}
	}
	return 0;
}

gm_inline u32 gm_current_pid(void)
{
	if (!cfg_pidns_inum)
		return bpf_get_current_pid_tgid() >> 32;
	return gm_nr(gm_leader((void *)bpf_get_current_task_btf()));
}

gm_inline u32 gm_current_tid(void)
{
	if (!cfg_pidns_inum)
		return bpf_get_current_pid_tgid();
	return gm_nr((void *)bpf_get_current_task_btf());
}

gm_inline bool gm_traced(u32 pid)
{
	return pid && (cfg_all || bpf_map_lookup_elem(&targets, &pid));
}

/* gm_emit sends th->ev. */
gm_inline void gm_emit(struct gm_thread *th)
{
	if (!gm_output(th->ev.user, &th->ev, sizeof(th->ev), 0))
		gm_lose(th->ev.user, &th->ev.pid);
}

/* gm_charge notes whose th->ev is and what it costs, and takes no stack for it where none
 * is wanted. */
gm_inline void gm_charge(struct gm_thread *th, u16 class)
{
	struct gm_target *t = gm_target_of(&th->ev.pid);
	u32 user = t ? t->user : 0;
	u64 shed = t ? t->shed : 0;
	struct gm_user *u = bpf_map_lookup_elem(&users, &user);
	if (u && u->shed > shed)
		shed = u->shed;
	th->ev.user = user;
	th->ev.flags = 0;
	if (t)
		__sync_fetch_and_add(&t->bytes, sizeof(th->ev));
	if (th->want_stack && shed >= (class == GM_CLASS_TENSOR ? GM_SHED_TENSORS : GM_SHED_ALL)) {
		th->want_stack = 0;
		th->ev.flags = GM_EVENT_SHED;
	}
}

/* gm_mix folds one word into a running 64-bit hash (the step of MurmurHash3's
 * 64-bit finalizer, applied to the sum). */
gm_inline u64 gm_mix(u64 h, u64 w)
{
	h ^= w;
	h *= 0xff51afd7ed558ccdULL;
	h ^= h >> 32;
	return h;
}

/* gm_send sends the first n words of s, of which there are at most max, and whose
 * user, id, start, pid and frames are filled in, unless user space has that stack. False
 * means that it found no room: the next event with that stack sends it again. */
gm_inline bool gm_send(struct gm_stack *s, u64 n, u64 max, u32 flags)
{
	u32 one = 1;
	/* The verifier is to see the bound, also where the compiler knows it. */
	asm volatile("" : "+r"(n));
	u64 id = s->id;
	if (bpf_map_lookup_elem(&stacks_seen, &id))
		return true;
	s->type = GM_STACK;
	s->flags = flags;
	if (n > max)
		n = max;
	u64 size = __builtin_offsetof(struct gm_stack, words) + n * sizeof(u64);
	/* Woken at once: a short-lived process may not outlive a poll. */
	if (!gm_output(s->user, s, size, GM_RB_FORCE_WAKEUP))
		return false;
	u32 pid = s->pid;
	struct gm_target *t = bpf_map_lookup_elem(&targets, &pid);
	if (t)
		__sync_fetch_and_add(&t->bytes, size);
	bpf_map_update_elem(&stacks_seen, &id, &one, BPF_ANY);
	return true;
}

/* gm_name gives s, which has up to GM_FRAMES words, its id. */
gm_step u32 gm_name(struct gm_stack *s)
{
	if (!s)
		return 0;
	u64 h = gm_mix(s->pid, s->start);
	u32 n = s->frames;
	for (u32 i = 0; i < GM_FRAMES; i++) {
		if (i >= n)
			break;
		h = gm_mix(h, s->words[i]);
	}
	s->id = h ?: 1;
	return 0;
}

/* gm_stack_fp takes the kernel's frame-pointer walk as the stack of th->ev. */
gm_inline void gm_stack_fp(void *ctx, struct gm_thread *th)
{
	long size = bpf_get_stack(ctx, th->stack.words, sizeof(th->stack.words), GM_F_USER_STACK);
	if (size <= 0) {
		gm_count(GM_LOSS_NO_STACK);
		return;
	}
	u32 n = (u64)size / sizeof(u64);
	th->stack.start = th->ev.start;
	th->stack.pid = th->ev.pid;
	th->stack.user = th->ev.user;
	th->stack.frames = n;
	gm_name(&th->stack);
	if (!gm_send(&th->stack, n, GM_FRAMES, 0))
		gm_count(GM_LOSS_RING_STACK);
	th->ev.stack = th->stack.id;
}

gm_inline struct gm_thread *gm_thread_get(bool create)
{
	return bpf_task_storage_get(&threads, bpf_get_current_task_btf(), NULL,
				    create ? GM_STORAGE_CREATE : 0);
}

/* gm_thread_enter returns the state of the running thread, NULL if its process is
 * not traced. A process is traced until it ends, and only an exec by another thread
 * than the leader changes what events say of a thread. */
gm_inline struct gm_thread *gm_thread_enter(void)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	struct gm_thread *th = bpf_task_storage_get(&threads, (void *)task, NULL, 0);
	/* Read as they are: a call takes longer. */
	if (th && th->ids == ((u64)task->tgid << 32 | (u32)task->pid))
		return th;
	u32 pid = gm_current_pid();
	if (!gm_traced(pid))
		return NULL;
	th = gm_thread_get(true);
	if (!th) {
		gm_count(GM_LOSS_NO_THREAD);
		return NULL;
	}
	if (!th->ids)
		th->device = -1;
	struct task_struct___gm *leader = gm_leader((void *)bpf_get_current_task_btf());
	gm_read(th->ev.start, leader->start_boottime);
	th->ev.type = GM_CALL;
	th->ev.pid = pid;
	th->ev.tid = gm_current_tid();
	th->tensors.of.start = th->ev.start;
	th->tensors.of.pid = pid;
	th->ids = bpf_get_current_pid_tgid();
	return th;
}

/* gm_extent returns where a cudaExtent passed by value lies: 24 bytes are more
 * than registers take. System V passes it on the stack above the return
 * address; AAPCS64 passes the address of a copy in the next register. */
gm_inline void *gm_extent(struct pt_regs *ctx, u64 arg)
{
#if defined(__TARGET_ARCH_x86)
	return (void *)(ctx->sp + 8);
#else
	return (void *)arg;
#endif
}

/* gm_trampoline leaves in *at the address that pending uretprobes put in place of
 * return addresses, or 0 (kernel/events/uprobes.c, uprobe_get_trampoline_vaddr).
 * *at is not on a program's stack, which is small. */
gm_inline void gm_trampoline(u64 *at)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	struct xol_area___gm *area = task->mm->uprobes_state.xol_area;
	gm_read(*at, area->vaddr); /* its type is the kernel's own, and may lack in what the verifier knows */
}

/* gm_on_signal_stack says whether an address lies on the stack that the running thread
 * has for its signal handlers, which may lie anywhere. */
gm_inline bool gm_on_signal_stack(u64 at)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	return at - task->sas_ss_sp < task->sas_ss_size;
}

/* gm_above_pending says whether a signal handler makes a call, from its own stack at sp,
 * above a stack on which a return probe waits. The kernel takes that one for passed, since
 * its frame lies below sp, and forgets where it returns to (cleanup_return_instances,
 * kernel/events/uprobes.c): with a return probe of its own the call would have the process
 * end with SIGILL. */
gm_inline bool gm_above_pending(u64 sp)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	if (!gm_on_signal_stack(sp) || !task->utask)
		return false;
	struct return_instance___gm *ri = task->utask->return_instances;
	return ri && ri->stack < sp && !gm_on_signal_stack(ri->stack);
}

/* gm_left says whether the pending call c of th is seen to be over, now that another
 * comes from th->sp. On x86 the trampoline's address stands where it was entered
 * until the function returns, unless that is ioctl, whose return is not always seen
 * by a return probe. arm64 replaces the link register and leaves no such word. A
 * frame that has not overwritten it makes a call look pending that is not. */
gm_inline bool gm_left(struct gm_thread *th, struct gm_call *c)
{
	if (c->sp < *(volatile u64 *)&th->sp)
		return true;
#if defined(__TARGET_ARCH_x86)
	return th->trampoline && !c->escape && !bpf_probe_read_user(&th->word, sizeof(th->word), (void *)c->sp) &&
	       th->word != th->trampoline;
#else
	return false;
#endif
}

/* gm_escape returns the row of the kernel driver's call that an ioctl is, or 0. A
 * request that is wrapped in another (nv_ioctl_xfer_t: number, size, pointer) takes
 * its place in the arguments. nr is room for a number on the program's small stack. */
gm_inline u32 gm_escape(struct gm_call *c, u32 *nr)
{
	const u32 wrapped = 211; /* NV_ESC_IOCTL_XFER_CMD */
	*nr = c->args[1] & 0xff;
	if ((c->args[1] >> 8 & 0xff) != 'F')
		return 0;
	if (*nr == wrapped) {
		if (bpf_probe_read_user(&c->args[6], 8, (void *)c->args[2]) ||
		    bpf_probe_read_user(&c->args[2], 8, (void *)c->args[2] + 8))
			return 0;
		*nr = c->args[6] & 0xff;
		c->args[1] = c->args[6] >> 32 << 16 | *nr;
	}
	struct gm_escape *e = bpf_map_lookup_elem(&escapes, nr);
	if (!e)
		return 0;
	if (!e->at)
		return e->row[0];
	c->args[6] = 0;
	if (bpf_probe_read_user(&c->args[6], 4, (void *)c->args[2] + e->at))
		return 0;
	for (u32 i = 0; i < GM_ESCAPE_WAYS; i++)
		if (e->row[i] && e->is[i] == (u32)c->args[6])
			return e->row[i];
	return 0;
}

/* gm_enter remembers a call, and returns whether it did: only then its return is wanted.
 * A pending call that an exception or a longjmp skipped never returns. Three signs show
 * it: a stack pointer below the new call's, a second entry of its row, or a changed
 * return address. It and the calls above it are forgotten. (An equal stack pointer is a
 * tail call, which is still pending.) Of a function that calls itself, only the innermost
 * call is kept. The others are counted when they return (gm_count_no_entry). */
gm_inline bool gm_enter(struct pt_regs *ctx, u64 cookie)
{
	u32 row = gm_cookie_row(cookie);
	struct gm_thread *th = gm_thread_enter();
	if (!th)
		return false;
	bool above = gm_above_pending(ctx->sp);
	th->sp = ctx->sp;
	if (th->depth && !above) {
		gm_trampoline(&th->trampoline);
		for (u32 i = 0; i < GM_CALLS; i++)
			if (i < *(volatile u32 *)&th->depth &&
			    (th->calls[i].row == row || gm_left(th, &th->calls[i]))) {
				th->forgotten = th->calls[i].time;
				th->depth = i;
			}
	}
	u32 depth = *(volatile u32 *)&th->depth;
	if (depth >= GM_CALLS) {
		gm_count(GM_LOSS_CALLS_FULL);
		return false;
	}
	struct gm_call *c = &th->calls[depth];
	c->row = row;
	c->time = bpf_ktime_get_ns();
	c->sp = *(volatile u64 *)&th->sp;
	__builtin_memcpy(c->args, (u64[]){ GM_ARGS(ctx) }, 6 * sizeof(u64));
	struct gm_row *r = bpf_map_lookup_elem(&rows, &row);
	if (r && (r->flags & GM_ROW_EXTENT) &&
	    bpf_probe_read_user(&c->args[4], 24, gm_extent(ctx, c->args[r->stride & 7])))
		gm_count(GM_LOSS_UNREADABLE);
	c->escape = 0;
	if (r && r->class == GM_CLASS_ESCAPE) {
		c->escape = gm_escape(c, &row);
		if (!c->escape)
			return false;
	}
	if (above) {
		gm_count(GM_LOSS_SIGNAL_STACK);
		return false;
	}
	th->depth++;
	return true;
}

gm_inline void gm_context(struct gm_thread *th, u32 class, u64 arg)
{
	u32 d = th->ctx_depth;
	switch (class) {
	case GM_CLASS_CTX_PUSH:
		/* Deeper than GM_CTX_DEPTH the level is counted, not kept:
		 * the context is "not known" there. */
		th->ctx_depth = ++d;
		if (d < GM_CTX_DEPTH)
			th->ctx[d] = arg;
		break;
	case GM_CLASS_CTX_POP:
		if (d > 0)
			th->ctx_depth = d - 1;
		else
			th->ctx[0] = 0; /* below what was seen */
		break;
	default:
		if (d < GM_CTX_DEPTH)
			th->ctx[d] = arg;
	}
	th->device = -1;
}

/* gm_capture fills th->ev.v as the row says. */
gm_step u32 gm_capture(struct gm_thread *th, struct gm_row *row)
{
	if (!th || !row)
		return 0;
	u64 bad = 0;
	u32 first = 0;
	if (row->flags & GM_ROW_NAME) {
		bad = bpf_probe_read_user_str(th->ev.v, 32, (void *)th->done.args[0]) < 0;
		first = 4;
	}
	for (u32 i = 0; i < GM_VALUES; i++) {
		if (i < first)
			continue;
		u64 v = th->done.args[row->cap[i].arg & 7];
		void *at = (void *)(v + row->cap[i].off);
		u32 size = row->cap[i].size;
		if (size)
			bad |= bpf_probe_read_user(&v, size == 4 ? 4 : 8, at);
		th->ev.v[i] = size == 4 ? (u32)v : v;
	}
	if (bad)
		gm_count(GM_LOSS_UNREADABLE);
	return 0;
}

/* gm_tensor stages the event of a call of c10::reportMemoryUsageToProfiler, which a
 * caching allocator makes when it has handed out or taken back memory (c10/core/
 * Allocator.h): where, how many bytes (negative: taken back), the allocator's own
 * totals, and at argument `stride` a c10::Device: two bytes, the type and the index.
 * What is not on a CUDA device ends here, and so does what is not to be told. Argument
 * 6 of the event is 1 for what tells of no tensor. A function without a stride tells of
 * something else, always. Nothing is pending: the function has no return probe, which
 * an exception could not pass. */
gm_inline struct gm_thread *gm_tensor(struct pt_regs *ctx, u32 id, u32 gate, struct gm_row *row)
{
	const u8 cuda = 1; /* c10/core/DeviceType.h */
	u64 args[] = { GM_ARGS(ctx) };
	bool totals = row->stride == 4; /* an older function has none */
	u64 device = totals ? args[4] : args[2];
	if (row->stride && (u8)device != cuda)
		return NULL;
	u64 *since = bpf_map_lookup_elem(&gates, &gate);
	struct gm_thread *th = gm_thread_enter();
	if (!th || !since)
		return NULL;
	/* Once open it is so until it is shut: no time is looked at again. */
	if (th->ev.time < *since) {
		th->ev.time = bpf_ktime_get_ns();
		if (th->ev.time < *since)
			return NULL;
	}
	s64 bytes = args[1];
	th->done.args[6] = 0;
	if (row->stride && (cfg_tensor_sample || cfg_tensor_min)) {
		th->tensors.of.device = (s8)(device >> 8);
		u32 tell = gm_tell(&th->tensors, args[0], bytes, totals ? args[2] : ~0ULL, totals ? args[3] : ~0ULL);
		if (tell == GM_TELL_NOTHING)
			return NULL;
		if (tell == GM_TELL_END)
			bytes = -(s64)th->tensors.ended;
		th->done.args[6] = tell == GM_TELL_POOL;
	}
	__builtin_memcpy(th->done.args, args, sizeof(args));
	th->done.args[1] = bytes;
	th->ev.time = bpf_ktime_get_ns();
	th->ev.row = id;
	th->ev.outer = 0;
	th->ev.result = 0;
	th->ev.stack = 0;
	th->ev.ctx = 0;
	th->ev.device = -1;
	gm_capture(th, row);
	th->want_stack = (row->flags & GM_ROW_STACK) && (cfg_free_stacks || bytes > 0) && !th->done.args[6];
	gm_charge(th, GM_CLASS_TENSOR);
	return th;
}

/* gm_leave ends the pending call of this row and stages its event in th->ev.
 * It returns the thread when there is an event to send, else NULL; then
 * th->want_stack says whether the event wants a stack. */
gm_inline struct gm_thread *gm_leave(struct pt_regs *ctx, struct gm_row **rowp)
{
	u64 cookie = bpf_get_attach_cookie(ctx);
	u32 id = gm_cookie_row(cookie), gate = gm_cookie_gate(cookie);
	struct gm_row *row = bpf_map_lookup_elem(&rows, &id);
	if (!row)
		return NULL;
	if (row->class == GM_CLASS_TENSOR) {
		*rowp = row;
		return gm_tensor(ctx, id, gate, row);
	}
	struct gm_thread *th = gm_thread_get(false);
	u32 at = GM_CALLS, depth = th ? th->depth : 0;
	for (u32 i = 0; i < GM_CALLS; i++)
		if (th && i < depth && th->calls[i].row == id)
			at = i;
	if (!th || at >= GM_CALLS) {
		/* With all places taken it was counted when it was entered. */
		if (row->class == GM_CLASS_EMIT && depth < GM_CALLS && gm_traced(gm_current_pid()))
			gm_count_no_entry(gate, th);
		return NULL;
	}
	th->done = th->calls[at];
	th->depth = at;
	s32 result = GM_RET(ctx);
	if (row->class == GM_CLASS_ESCAPE) {
		id = th->done.escape;
		row = bpf_map_lookup_elem(&rows, &id);
		if (!row)
			return NULL;
		if (row->flags & GM_ROW_POINTER &&
		    bpf_probe_read_user(&th->done.args[6], 8, (void *)th->done.args[2] + row->stride))
			th->done.args[6] = 0;
	}

	switch (row->class) {
	case GM_CLASS_EMIT:
		break;
	case GM_CLASS_CTX_SET:
	case GM_CLASS_CTX_PUSH:
	case GM_CLASS_CTX_POP:
		if (!result)
			gm_context(th, row->class, th->done.args[0]);
		return NULL;
	case GM_CLASS_CTX_DEVICE:
		if (!result && !((row->flags & GM_ROW_CTX_ARG) && th->done.args[1]))
			bpf_probe_read_user(&th->device, 4, (void *)th->done.args[0]);
		return NULL;
	case GM_CLASS_DEVICE_SET:
		if (!result)
			th->device = th->done.args[0];
		return NULL;
	default:
		return NULL;
	}
	if ((row->flags & GM_ROW_SKIP_NULL) && !th->done.args[0])
		return NULL;
	u64 *since = bpf_map_lookup_elem(&gates, &gate);
	if (!since || th->done.time < *since)
		return NULL;

	/* A function that allocates may reach another through its exported
	 * symbol: the outer call is the program's, and it tells the whole. So
	 * may one that frees reach another that does. What else is reached by
	 * other functions is all that tells of it. */
	u32 outer = 0;
	bool stack = row->flags & GM_ROW_STACK;
	for (u32 i = 0; i < GM_CALLS; i++) {
		if (i >= at)
			break;
		u32 key = th->calls[i].row;
		struct gm_row *r = bpf_map_lookup_elem(&rows, &key);
		if (!r)
			continue;
		if (row->flags & GM_ROW_KERNEL) {
			if (r->class != GM_CLASS_EMIT && r->class != GM_CLASS_CAUSE)
				continue;
			outer = key;
			stack = row->flags & GM_ROW_STACK &&
				!(row->flags & GM_ROW_BACKING && r->flags & GM_ROW_BACKED);
			continue;
		}
		if (r->class == GM_CLASS_EMIT &&
		    (r->flags & (GM_ROW_ALLOCATES | (row->flags & GM_ROW_FREES)))) {
			gm_count(GM_LOSS_NESTED);
			return NULL;
		}
		if (r->class == GM_CLASS_AROUND)
			outer = key;
	}

	if (row->flags & GM_ROW_ALLOCATES)
		th->tensors.grown = 1;
	th->ev.row = id;
	th->ev.outer = outer;
	th->ev.time = (row->flags & GM_ROW_ENTRY_TIME) ? th->done.time : bpf_ktime_get_ns();
	th->ev.result = result;
	th->ev.stack = 0;
	if (!(row->flags & GM_ROW_LIST))
		gm_capture(th, row);
	if ((row->flags & GM_ROW_PUSHES) && !result)
		gm_context(th, GM_CLASS_CTX_PUSH, th->ev.v[0]);
	u32 d = th->ctx_depth;
	if ((row->flags & GM_ROW_POPS) && !result && d < GM_CTX_DEPTH &&
	    th->ctx[d] == th->done.args[0])
		gm_context(th, GM_CLASS_CTX_POP, 0);
	th->ev.ctx = d < GM_CTX_DEPTH ? th->ctx[d] : 0;
	th->ev.device = th->device;
	th->want_stack = stack;
	gm_charge(th, row->class);
	*rowp = row;
	return th;
}

/* gm_finish sends the staged event, one for each element of a list. */
gm_inline void gm_finish(struct gm_thread *th, struct gm_row *row)
{
	if (!(row->flags & GM_ROW_LIST)) {
		gm_emit(th);
		return;
	}
	u32 n = th->done.args[1];
	if (n > GM_LIST_MAX)
		gm_count(GM_LOSS_LIST_LONG);
	for (u32 i = 0; i < GM_LIST_MAX; i++) {
		if (i >= n)
			break;
		gm_capture(th, row);
		gm_emit(th);
		th->done.args[0] += row->stride;
	}
}

#endif
