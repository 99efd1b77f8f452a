//go:build ignore

/* SPDX-License-Identifier: GPL-2.0 */
#ifdef __TARGET_ARCH_x86 /* it has them together with tail calls since Linux 5.10 */
#define gm_step __attribute__((noinline))
#endif
#include "gpumemtrace.h"

char LICENSE[] SEC("license") = "GPL";

GM_MAP(nowhere, GM_MAP_PROG_ARRAY, 1, 0, u32, u32);

/* The program that runs when a function returns, for gm_tensor_enter and sessions. It is here before the first
 * traced process, but perhaps after the first probe. */
GM_MAP(exits, GM_MAP_PROG_ARRAY, 1, 0, u32, u32);

/* gm_call_enter runs at the entry of a function. In a session (Linux 6.13 and later) the kernel
 * also runs it at the return, unless it returned 1 at the entry: then the kernel does not
 * replace the return address. */
SEC("uprobe")
int gm_call_enter(struct pt_regs *ctx)
{
	gm_task_stack(ctx, &nowhere);
	if (cfg_session && bpf_get_func_ip(ctx) != GM_IP(ctx)) {
		bpf_tail_call(ctx, &exits, 0);
		return 0;
	}
	u64 cookie = bpf_get_attach_cookie(ctx);
	bool wanted = gm_enter(ctx, cookie);
	return cfg_session && (!wanted || gm_cookie_apart(cookie));
}

/* gm_tensor_enter runs when an allocator reports a tensor, and sends the event. If the event needs a
 * stack, the exit program takes that and sends it. */
SEC("uprobe")
int gm_tensor_enter(struct pt_regs *ctx)
{
	struct gm_thread *th = gm_tensor(ctx, bpf_get_attach_cookie(ctx));
	if (!th)
		return cfg_session;
	if (th->want_stack) {
		th->tensor = 1;
		bpf_tail_call(ctx, &exits, 0);
		th->tensor = 0;
	}
	gm_emit(th);
	return cfg_session;
}

/* gm_call_back runs in a session where a return has a probe of its own. It needs no return. */
SEC("uprobe")
int gm_call_back(struct pt_regs *ctx)
{
	bpf_tail_call(ctx, &exits, 0);
	return 1;
}

/* An exit program also runs at entries: in a session where a return has a probe of its own, and for
 * gm_tensor_enter. It returns 1 in a session because it needs no return of that. */
SEC("uretprobe")
int gm_call_exit(struct pt_regs *ctx)
{
	gm_task_stack(ctx, &nowhere);
	struct gm_row *row;
	struct gm_thread *th = gm_leave(ctx, &row);
	if (!th)
		return cfg_session;
	if (th->want_stack)
		gm_stack_fp(ctx, th);
	gm_finish(th, row);
	return cfg_session;
}

/* gm_life sends a fork, an exec or an exit. It uses no thread state, because the thread may
 * have none yet. */
gm_inline void gm_life(u32 type, u32 user, u32 pid, struct task_struct___gm *leader, u32 child,
		       struct task_struct___gm *child_leader)
{
	u64 wake;
	struct gm_event *e = NULL;
	if (gm_room(user, sizeof(*e), &wake)) {
		e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
		if (!e)
			gm_no_room(user, sizeof(*e));
	}
	if (!e) {
		gm_lose(user, &pid);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->type = type;
	e->user = user;
	e->time = bpf_ktime_get_ns();
	gm_read(e->start, leader->start_boottime);
	e->pid = pid;
	e->tid = gm_current_tid();
	e->device = -1;
	if (child) {
		e->v[0] = child;
		gm_read(e->v[1], child_leader->start_boottime);
		leader = child_leader;
	}
	bpf_probe_read_kernel(&e->v[2], sizeof(leader->comm), &leader->comm);
	bpf_ringbuf_submit(e, wake);
}

/* gm_known returns the target pid, which is the running process, NULL if it is none. */
gm_inline struct gm_target *gm_known(u32 *pid)
{
	struct gm_target *t = bpf_map_lookup_elem(&targets, pid);
	if (t && !t->user)
		t->user = gm_user();
	return t;
}

/* The output of gm_starts for each process. */
struct gm_start {
	u64 start; /* start_boottime, ns */
	u32 pid;
	u32 unused;
};

/* gm_starts writes the start times of processes in nanoseconds. /proc has them only in
 * hundredths of a second. */
SEC("iter/task")
int gm_starts(struct bpf_iter_task___gm *ctx)
{
	struct task_struct___gm *task = ctx->task;
	if (!task)
		return 0;
	int pid, tgid;
	gm_read(pid, task->pid);
	gm_read(tgid, task->tgid);
	if (pid != tgid) /* a thread */
		return 0;
	struct gm_start s = { .pid = gm_nr(task) };
	gm_read(s.start, task->start_boottime);
	bpf_seq_write(ctx->meta->seq, &s, sizeof(s));
	return 0;
}

/* Raw tracepoints need no tracefs, and add a child to `targets` before it runs its first
 * instruction. */

SEC("raw_tp/sched_process_fork")
int gm_fork(u64 *args)
{
	struct task_struct___gm *parent = (void *)args[0], *child = (void *)args[1];
	u32 pid, tgid;
	gm_read(pid, child->pid);
	gm_read(tgid, child->tgid);
	if (pid != tgid) /* a thread */
		return 0;
	struct task_struct___gm *leader = gm_leader(parent);
	u32 from = gm_nr(leader);
	struct gm_target *t = cfg_follow && from ? gm_known(&from) : NULL;
	if (!t)
		return 0;
	struct gm_target new = { .user = t->user };
	u32 to = gm_nr(child);
	if (!to || bpf_map_update_elem(&targets, &to, &new, BPF_ANY)) {
		gm_count(GM_LOSS_TARGETS_FULL);
		return 0;
	}
	gm_life(GM_FORK, new.user, from, leader, to, child);
	return 0;
}

SEC("raw_tp/sched_process_exec")
int gm_exec(u64 *args)
{
	struct task_struct___gm *leader = gm_leader((void *)args[0]);
	u32 pid = gm_nr(leader);
	struct gm_target *t = pid ? gm_known(&pid) : NULL;
	if (!t)
		return 0;
	/* The thread is the only one left. What it had pending and current went with its image. */
	struct gm_thread *th = gm_thread_get(false);
	if (th) {
		th->ids = 0;
		th->depth = 0;
		th->ctx_depth = 0;
		th->ctx[0] = 0;
	}
	gm_life(GM_EXEC, t->user, pid, leader, 0, NULL);
	return 0;
}

SEC("raw_tp/sched_process_exit")
int gm_exit(u64 *args)
{
	struct task_struct___gm *task = (void *)args[0];
	gm_thread_end(task);
	struct signal_struct___gm *signal;
	int live;
	gm_read(signal, task->signal);
	gm_read(live, signal->live.counter);
	if (live) /* not the last thread */
		return 0;
	struct task_struct___gm *leader = gm_leader(task);
	u32 pid = gm_nr(leader);
	struct gm_target *t = pid ? gm_known(&pid) : NULL;
	if (!t)
		return 0;
	u32 user = t->user;
	bpf_map_delete_elem(&targets, &pid);
	gm_life(GM_EXIT, user, pid, leader, 0, NULL);
	return 0;
}
