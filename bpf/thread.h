/* SPDX-License-Identifier: GPL-2.0 */
/* The running task, its process, and the state that each thread keeps between the entry of
 * a call and its event. */
#ifndef GM_THREAD_H
#define GM_THREAD_H

#define GM_CALLS 6
#define GM_CTX_DEPTH 8

struct gm_call {
	u64 row;
	u64 escape; /* row of the kernel driver's call, 0 for none */
	u64 time;
	u64 sp; /* at entry */
	u64 ip; /* of its probe */
	u64 cookie;
	u64 own; /* the library of the call around it made it (gm_own) */
	u64 args[8]; /* six are filled; eight keep a masked index in bounds */
};

/* The state of a thread, which the kernel frees with the thread. Only the thread itself uses
 * it, so it needs no lock. Programs use it in place of their small BPF stacks. */
struct gm_thread {
	u64 ids; /* bpf_get_current_pid_tgid() at the time that ev's pid, tid and start were set */
	u32 depth;
	u32 ctx_depth;
	s32 device; /* of the current context, or -1 */
	u32 want_stack;
	u32 tensor; /* 1: ev is of gm_tensor, and waits for its stack */
	u32 owed;   /* bytes that gm_charge has not added to the process's costs yet */
	u32 shed;   /* of struct gm_target */
	u64 changes; /* of struct gm_user, when gm_charge looked at the target */
	u64 sp;		/* gm_enter: the stack pointer */
	u64 trampoline; /* gm_enter: the address that gm_trampoline found */
	u64 word;	/* gm_enter: the word at the stack pointer of a call */
	u64 top;	/* the end of the last stack (uw_near) */
	u64 py_low;	/* the lowest Python frame of the last stack (uw_python_near) */
	u64 forgotten;	/* entry time of the pending call that gm_enter dropped last */
	u64 ctx[GM_CTX_DEPTH];
	struct gm_call calls[GM_CALLS];
	struct gm_call done; /* the call that is returning */
	struct gm_event ev;
	struct gm_stack stack;
};

GM_MAP(threads, GM_MAP_TASK_STORAGE, 0, GM_F_NO_PREALLOC, int, struct gm_thread);

/* The states of threads to which the kernel gave no storage, by the addresses of their tasks.
 * From Linux 6.19 on it may give none while another CPU holds a lock of its allocator
 * (kmalloc_nolock), however much memory is free. */
GM_MAP(spare_threads, GM_MAP_HASH, 64, 0, u64, struct gm_thread);

const struct gm_thread gm_new_thread = {};

/* gm_task_stack makes the kernel place a program's stack on the task's kernel stack: it does so
 * for each program with a tail call. `nowhere` is a program array that is always empty. From
 * Linux 6.13 on, a program without a tail call that uses 49 bytes of stack or more gets a stack
 * of the CPU (BPF_PRIV_STACK_MIN_SIZE). Two uprobe programs that preempt each other would share
 * it. Programs of raw tracepoints cannot preempt each other. */
gm_inline void gm_task_stack(void *ctx, void *nowhere)
{
	bpf_tail_call(ctx, nowhere, 0);
}

gm_inline struct task_struct___gm *gm_leader(struct task_struct___gm *task)
{
	struct task_struct___gm *leader;
	gm_read(leader, task->group_leader);
	return leader;
}

/* gm_nr returns a task's number in the tracer's PID namespace, 0 if it has none there. The
 * number of a process's leader is its PID. */
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

/* gm_file returns the address of the file that a descriptor of the running process is open on,
 * 0 for none. The address tells open files apart, across processes. */
gm_inline u64 gm_file(u32 descriptor)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	struct files_struct___gm *files;
	struct fdtable___gm *table;
	u32 count;
	void **all, *file;
	gm_read(files, task->files);
	gm_read(table, files->fdt);
	gm_read(count, table->max_fds);
	gm_read(all, table->fd);
	if (descriptor >= count)
		return 0;
	gm_read(file, all[descriptor]);
	return (u64)file;
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

gm_inline struct gm_thread *gm_thread_get(bool create)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gm_thread *th = bpf_task_storage_get(&threads, task, NULL, 0);
	u64 spare = (u64)task;
	if (!th)
		th = bpf_map_lookup_elem(&spare_threads, &spare);
	if (th || !create)
		return th;
	th = bpf_task_storage_get(&threads, task, NULL, GM_STORAGE_CREATE);
	if (th || bpf_map_update_elem(&spare_threads, &spare, (void *)&gm_new_thread, BPF_ANY))
		return th;
	return bpf_map_lookup_elem(&spare_threads, &spare);
}

/* gm_thread_end forgets the state of a task that ends, if it is a spare one. The kernel frees
 * the others. */
gm_inline void gm_thread_end(struct task_struct___gm *task)
{
	u64 spare = (u64)task;
	bpf_map_delete_elem(&spare_threads, &spare);
}

/* gm_thread_enter returns the state of the running thread, NULL if its process is not traced.
 * A process stays traced until it ends. Only an exec by a thread that is not the leader
 * changes the ids of a thread. */
gm_inline struct gm_thread *gm_thread_enter(void)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	struct gm_thread *th = bpf_task_storage_get(&threads, (void *)task, NULL, 0);
	/* Direct reads: a helper call is slower. */
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
	th->ev.user = 0;
	th->ev.pid = pid;
	th->ev.tid = gm_current_tid();
	th->ids = bpf_get_current_pid_tgid();
	return th;
}

#endif
