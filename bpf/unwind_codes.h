/* SPDX-License-Identifier: GPL-2.0 */
/* The code objects that CPython frees. A frame names its code object by an address, at
 * which another one may come to lie. In a process that is watched a probe lies on the
 * function that frees them, and counts: while the cell of a code object's address is
 * what it was, the code object is the one that it was. The memo relies on it, the stack's
 * id, and user space when it names a frame (internal/source/unwind/pycode.go). Objects of all
 * processes share the cells: one count too many costs an unwind, and that a stack is sent
 * and named once more; one too few would be an error. */
#ifndef GM_UNWIND_CODES_H
#define GM_UNWIND_CODES_H

#define UW_CELLS (1 << 20) /* a power of 2; Linux 5.15 has no array's element above 4 MiB */

/* Odd. A frame has the number beside others that count up as well, such as lines. */
#define UW_CELL_FACTOR 0x9e3779b1U

struct unwind_cells {
	u32 n[UW_CELLS];
};

GM_MAP(unwind_codes, GM_MAP_ARRAY, 1, GM_F_MMAPABLE, u32, struct unwind_cells);

/* uw_codes returns the cells. */
gm_inline struct unwind_cells *uw_codes(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&unwind_codes, &zero);
}

/* uw_cell's place of an object is also computed by user space (codeCells). */
gm_inline u32 *uw_cell(struct unwind_cells *c, u32 pid, u64 code)
{
	return &c->n[gm_mix(pid, code) & (UW_CELLS - 1)];
}

/* uw_code_cell returns a number that stands for how many code objects of the cell were
 * freed: another for each count. What is read of the object is read afterwards. */
gm_inline u32 uw_code_cell(struct unwind_cells *c, u32 pid, u64 code)
{
	return *(volatile u32 *)uw_cell(c, pid, code) * UW_CELL_FACTOR;
}

struct task_struct___gm_codes {
	u64 self_exec_id;
	u64 start_boottime;
	struct mm_struct___gm *mm;
	struct task_struct___gm_codes *group_leader;
} GM_CORE;

/* uw_image returns a number that stands for the image that the running process has: it
 * may replace that by another. It is not 0. */
gm_inline u32 uw_image(void)
{
	struct task_struct___gm_codes *task = (void *)bpf_get_current_task_btf();
	struct task_struct___gm_codes *leader = task->group_leader;
	return gm_mix(leader->start_boottime, task->self_exec_id) | 1;
}

/* uw_watched tells whether the cells count all that the running process frees. It is for
 * every stack with Python frames: user space has processes watched in which it was
 * called. User space learns later than the kernel that a process replaced its image, or
 * that its first thread, by whose memory the kernel knows where the probe lies, has
 * ended. */
gm_inline bool uw_watched(struct unwind_process *process)
{
	if (!process)
		return false;
	struct task_struct___gm_codes *task = (void *)bpf_get_current_task_btf();
	struct task_struct___gm_codes *leader = task->group_leader;
	u32 image = uw_image();
	if (!process->image)
		process->image = image;
	return process->watched && process->image == image && leader->mm;
}

/* gm_code_freed runs where CPython frees the code object that is the first argument.
 * It is sleepable: other programs of uprobes are passed over before Linux 6.0 while
 * another program is under way on the CPU (trace_call_bpf, kernel/trace/bpf_trace.c),
 * and a kernel that takes this one does not (bpf_prog_run_array_uprobe). */
SEC("uprobe.s")
int gm_code_freed(struct pt_regs *ctx)
{
	u32 pid = gm_current_pid();
	struct unwind_process *process = bpf_map_lookup_elem(&unwind_processes, &pid);
	if (!process)
		return 0;
	struct unwind_cells *c = uw_codes();
	if (!c)
		return 0;
	__sync_fetch_and_add(uw_cell(c, pid, (u64[]){ GM_ARGS(ctx) }[0]), 1);
	__sync_fetch_and_add(&process->freed, 1);
	return 0;
}

#endif
