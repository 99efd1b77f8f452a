/* SPDX-License-Identifier: GPL-2.0 */
/* A stack that leads through code whose table is not there yet, as a library
 * that was just loaded has none: what its unwind may read goes to user space,
 * which has gm_unwind_copy unwind it there as soon as the tables are known. */
#ifndef GM_UNWIND_COPY_H
#define GM_UNWIND_COPY_H

#define UW_COPY_PAGES 16

/* internal/unwind/copies.go reads the fields up to size. */
struct unwind_copy {
	u64 id; /* of the stack */
	u64 start;
	u32 pid;
	u32 tid;
	u64 size; /* of stack, bytes */
	u64 of;	  /* its address in the process */
	u64 user; /* in `users` */
	UnwindState state;
	u64 trampoline;
	struct unwind_hidden hidden[UW_HIDDEN];
	u64 py_hash;
	u32 py_read, py_error;
	struct unwind_python python[UW_PYTHON];
	u8 stack[UW_COPY_PAGES * UW_PAGE];
};

/* About fifty copies. */
struct {
	__uint(type, GM_MAP_RINGBUF);
	__uint(max_entries, 4 << 20);
} copies SEC(".maps");

/* How many copies each of `users` has sent, and how many of them user space has taken. */
GM_MAP(copies_sent, GM_MAP_ARRAY, GM_USERS, 0, u32, u64);
GM_MAP(copies_taken, GM_MAP_ARRAY, GM_USERS, 0, u32, u64);

/* uw_copy sends the copy of an unwind that ended early, which began at the
 * registers in u->begin, and names it. It returns 0 when there is no room: nobody may
 * have more waiting than there is room for (gm_room). */
__attribute__((noinline)) u32 uw_copy(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u32 user = u->user;
	u64 *sent = bpf_map_lookup_elem(&copies_sent, &user), *taken = bpf_map_lookup_elem(&copies_taken, &user);
	if (!sent || !taken)
		return 0;
	u64 room = bpf_ringbuf_query(&copies, GM_RB_RING_SIZE) - bpf_ringbuf_query(&copies, GM_RB_AVAIL_DATA);
	if ((*sent - *taken + 1) * sizeof(struct unwind_copy) > room)
		return 0;
	struct unwind_copy *c = bpf_ringbuf_reserve(&copies, sizeof(*c), 0);
	if (!c)
		return 0;
	__sync_fetch_and_add(sent, 1);
	c->user = user;
	u64 now = bpf_ktime_get_ns();
	u->id = gm_mix(gm_mix(gm_mix(u->key.pid, u->key.start), now), u->tid) ?: 1;
	c->id = u->id;
	c->start = u->key.start;
	c->pid = u->key.pid;
	c->tid = u->tid;
	c->of = u->key.sp & ~(UW_PAGE - 1ULL);
	c->state = u->begin;
	c->trampoline = u->trampoline;
	bpf_probe_read_kernel(c->hidden, sizeof(c->hidden), u->hidden);
	c->py_hash = u->py_hash;
	c->py_read = u->py_read;
	c->py_error = u->py_error ?: (u->py_frame ? ERR_STACK_LENGTH_EXCEEDED : 0);
	bpf_probe_read_kernel(c->python, sizeof(c->python), u->python);
	u64 size = 0;
	for (u32 i = 0; i < UW_COPY_PAGES; i++) {
		if (bpf_probe_read_user(c->stack + i * UW_PAGE, UW_PAGE, (void *)(c->of + i * UW_PAGE)))
			break;
		size += UW_PAGE;
	}
	c->size = size;
	bpf_ringbuf_submit(c, 0);
	return 1;
}

/* uw_paste makes the copy that lies at the address at, in this process's memory, the
 * stack of the slot. It returns 0 if it cannot be read. */
gm_inline bool uw_paste(struct unwind *u, u64 at)
{
	struct unwind_copy *c = (void *)at;
	u64 words[6];
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
	u->key.start = words[1];
	u->key.pid = words[2];
	u->tid = words[2] >> 32;
	u->copy_size = words[3];
	u->copy_of = words[4];
	u->user = words[5];
	u->copy_at = (u64)c->stack;
	return true;
}

#endif
