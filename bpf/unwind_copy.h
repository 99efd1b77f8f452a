/* SPDX-License-Identifier: GPL-2.0 */
/* Copies of stacks through code that has no table yet, such as a library that was just
 * loaded. A copy has the memory that the unwind may read. User space gets it, and runs
 * gm_unwind_copy on it as soon as the tables are there. */
#ifndef GM_UNWIND_COPY_H
#define GM_UNWIND_COPY_H

/* Pages of the stack in a copy, and in one of a deeper and of a deep stack; 64 at most. */
#define UW_COPY_PAGES 16
#define UW_COPY_MORE 32
#define UW_COPY_DEEP 64
#define UW_ERR_NOT_COPIED 9000 /* not in errors.h: the unwind reached memory outside the copy */

/* internal/source/unwind/copies.go reads the PID. */
struct unwind_copy {
	u64 id; /* of the stack */
	u64 start;
	u32 pid;
	u32 tid;
	u64 size; /* of stack, bytes */
	u64 of;	  /* its address in the process */
	u64 user; /* in `users` */
	u64 missing; /* pages that could not be read, such as untouched ones, a bit for each */
	UnwindState state;
	u64 trampoline;
	struct unwind_hidden hidden[UW_HIDDEN];
	u64 py_hash;
	u32 py_read, py_error;
	struct unwind_python python[UW_PYTHON];
	u8 stack[];
};

/* About two hundred copies, or sixty of deep stacks. A program that loads many libraries
 * at once sends forty and more before its first analysis is over, and one user may have
 * half of the room. */
struct {
	__uint(type, GM_MAP_RINGBUF);
	__uint(max_entries, 16 << 20);
} copies SEC(".maps");

/* Bytes of copies that each of `users` has sent, and that user space has read. */
GM_MAP(copies_sent, GM_MAP_ARRAY, GM_USERS, 0, u32, u64);
GM_MAP(copies_read, GM_MAP_ARRAY, GM_USERS, 0, u32, u64);

struct mm_struct___gm_copy {
	unsigned long start_stack;
} GM_CORE;
struct task_struct___gm_copy {
	struct mm_struct___gm_copy *mm;
} GM_CORE;

/* uw_extent estimates how many bytes the thread's stack has from an address on. A thread's
 * own variables (TLS) lie at the end of its stack, and the first thread's stack ends where
 * the program began. */
gm_inline u64 uw_extent(u64 from)
{
	const u64 large = UW_COPY_DEEP * UW_PAGE;
	struct task_struct___gm_copy *task = (void *)bpf_get_current_task_btf();
	u64 size = uw_thread_pointer() - from;
	if (size <= large)
		return size;
	size = task->mm ? task->mm->start_stack - from : large;
	return size <= large ? size : large;
}

/* uw_copy_pages sends a copy with this many pages of the stack. It returns 0 if there is
 * no room. A user may not have more bytes waiting than there is room left (gm_room). */
gm_inline u32 uw_copy_pages(struct unwind *u, const u32 pages)
{
	const u64 size = sizeof(struct unwind_copy) + pages * UW_PAGE;
	u32 user = u->user;
	u64 *sent = bpf_map_lookup_elem(&copies_sent, &user), *read = bpf_map_lookup_elem(&copies_read, &user);
	if (!sent || !read)
		return 0;
	u64 room = bpf_ringbuf_query(&copies, GM_RB_RING_SIZE) - bpf_ringbuf_query(&copies, GM_RB_AVAIL_DATA);
	if (*sent - *read + size > room)
		return 0;
	struct unwind_copy *c = bpf_ringbuf_reserve(&copies, size, 0);
	if (!c)
		return 0;
	__sync_fetch_and_add(sent, size);
	c->user = user;
	c->id = u->id;
	c->start = u->start;
	c->pid = u->key.pid;
	c->tid = u->tid;
	c->size = pages * UW_PAGE;
	c->of = u->sp & ~(UW_PAGE - 1ULL);
	c->state = u->begin;
	c->trampoline = u->trampoline;
	bpf_probe_read_kernel(c->hidden, sizeof(c->hidden), u->hidden);
	c->py_hash = u->py_hash;
	c->py_read = u->py_read;
	c->py_error = u->py_error ?: (u->py_frame ? ERR_STACK_LENGTH_EXCEEDED : 0);
	bpf_probe_read_kernel(c->python, sizeof(c->python), u->python);
	u64 missing = 0;
	for (u32 i = 0; i < pages; i++) {
		s64 err = bpf_probe_read_user(c->stack + i * UW_PAGE, UW_PAGE, (void *)(c->of + i * UW_PAGE));
		missing |= (u64)err >> 63 << i;
	}
	c->missing = missing;
	bpf_ringbuf_submit(c, 0);
	return 1;
}

/* uw_copy gives the stack of an unwind that ended early an id, and sends a copy, which
 * begins at the registers in u->begin. It returns 0 if there is no room. Then the stack
 * has no id, because nothing would send it. */
__attribute__((noinline)) u32 uw_copy(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u64 unnamed = u->id, now = bpf_ktime_get_ns();
	u->id = gm_mix(gm_mix(gm_mix(u->key.pid, u->start), now), u->tid) ?: 1;
	u64 extent = uw_extent(u->sp & ~(UW_PAGE - 1ULL));
	if (extent > UW_COPY_MORE * UW_PAGE && uw_copy_pages(u, UW_COPY_DEEP))
		return 1;
	if (extent > UW_COPY_PAGES * UW_PAGE && uw_copy_pages(u, UW_COPY_MORE))
		return 1;
	if (uw_copy_pages(u, UW_COPY_PAGES))
		return 1;
	u->id = unnamed;
	return 0;
}

/* uw_paste loads the copy at an address of this process's memory into the slot. It returns
 * 0 if the copy cannot be read. */
gm_inline bool uw_paste(struct unwind *u, u64 at)
{
	struct unwind_copy *c = (void *)at;
	u64 words[7];
	if (bpf_probe_read_user(words, sizeof(words), c) ||
	    bpf_probe_read_user(&u->record.state, sizeof(u->record.state), &c->state) ||
	    bpf_probe_read_user(&u->trampoline, sizeof(u->trampoline), &c->trampoline) ||
	    bpf_probe_read_user(u->hidden, sizeof(u->hidden), c->hidden) ||
	    bpf_probe_read_user(&u->py_hash, sizeof(u->py_hash), &c->py_hash) ||
	    bpf_probe_read_user(&u->py_read, sizeof(u->py_read), &c->py_read) ||
	    bpf_probe_read_user(&u->py_error, sizeof(u->py_error), &c->py_error) ||
	    bpf_probe_read_user(u->python, sizeof(u->python), c->python))
		return false;
	u->id = words[0];
	u->start = words[1];
	u->key.pid = words[2];
	u->tid = words[2] >> 32;
	u->copy_size = words[3];
	u->copy_of = words[4];
	u->user = words[5];
	u->copy_missing = words[6];
	u->copy_at = (u64)c->stack;
	return true;
}

#endif
