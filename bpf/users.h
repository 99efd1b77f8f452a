/* SPDX-License-Identifier: GPL-2.0 */
/* The traced processes, their users, their costs, and each user's part of the ring buffer. */
#ifndef GM_USERS_H
#define GM_USERS_H

/* The calls that get no stack, to save the tracer's time and memory. */
enum gm_shed {
	GM_SHED_NOTHING,
	GM_SHED_TENSORS, /* calls of GM_CLASS_TENSOR */
	GM_SHED_ALL,
};

/* A traced process and its costs. */
struct gm_target {
	u32 user; /* in `users`; 0: not known yet */
	u32 shed; /* enum gm_shed; user space sets it */
	u64 bytes; /* that it put into the ring buffer */
	u64 lost;  /* events for which the ring buffer had no room */
};

/* The processes to trace, by PID in the tracer's namespace. */
GM_MAP(targets, GM_MAP_HASH, 65536, 0, u32, struct gm_target);

/* A user of the machine with traced processes (gm_user). The kernel side writes the first cache
 * line, user space the second one. */
struct gm_user {
	u64 sent; /* bytes put into the ring buffer */
	u64 lost; /* events for which the ring buffer had no room */
	u64 unused[6];
	u64 read; /* bytes of `sent` that user space has read */
	u64 shed; /* enum gm_shed */
	u64 changes; /* in place 0: how often user space changed a target */
	u64 unused2[5];
};

#define GM_USERS 1024
#define GM_USER_TRIES 8

GM_MAP(users, GM_MAP_ARRAY, GM_USERS, GM_F_MMAPABLE, u32, struct gm_user);

/* The owner of each place in `users`, as gm_who returns it. User space frees places without a
 * process. Place 0 is for all users without a place of their own. */
GM_MAP(owners, GM_MAP_HASH, GM_USERS, 0, u32, u32);

/* gm_who returns the user of the running process: its effective user, or in a user namespace
 * the creator of the outermost one, unless that is root (proc.User does the same). */
gm_inline u32 gm_who(void)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	u32 who, owner = 0, maker = 0;
	struct cred___gm *cred;
	struct user_namespace___gm *ns, *parent;
	gm_read(cred, task->cred);
	gm_read(who, cred->euid.val);
	gm_read(ns, cred->user_ns);
	for (u32 i = 0; i < 33; i++) { /* they nest 32 deep */
		gm_read(parent, ns->parent);
		if (!parent)
			break;
		gm_read(owner, ns->owner.val);
		maker = owner;
		ns = parent;
	}
	return maker ?: who;
}

/* gm_user returns the place in `users` of the running process's user, 0 if other users have all
 * places that it could have. */
gm_step u32 gm_user(void)
{
	u32 who = gm_who(), at = who * 0x9e3779b1 >> 22;
	for (u32 i = 0; i < GM_USER_TRIES; i++) {
		u32 place = (at + i) & (GM_USERS - 1);
		if (!place)
			continue;
		u32 *owner = bpf_map_lookup_elem(&owners, &place);
		if (!owner) {
			if (!bpf_map_update_elem(&owners, &place, &who, BPF_NOEXIST))
				return place;
			owner = bpf_map_lookup_elem(&owners, &place); /* another CPU was first */
		}
		if (owner && *owner == who)
			return place;
	}
	return 0;
}

/* gm_target_of returns the target pid, which is the running process. If every process is
 * traced, it adds the process to the table. */
gm_inline struct gm_target *gm_target_of(u32 *pid)
{
	struct gm_target *t = bpf_map_lookup_elem(&targets, pid);
	if (!t && cfg_all) {
		struct gm_target new = { .user = gm_user() };
		if (bpf_map_update_elem(&targets, pid, &new, BPF_ANY))
			gm_count(GM_LOSS_TARGETS_FULL);
		t = bpf_map_lookup_elem(&targets, pid);
	}
	if (t && !t->user)
		t->user = gm_user();
	return t;
}

/* gm_room reserves size bytes of a user's part of the ring buffer, and stores in *wake whether to
 * wake the reader. No user may have more bytes waiting than are free, but each a few. So one user
 * alone gets half of the ring buffer, and each of n busy users 1/(n+1), which leaves room for one
 * more. */
gm_inline bool gm_room(u32 user, u64 size, u64 *wake)
{
	/* A wake-up costs the traced program microseconds, and the reader polls every few tens of
	 * milliseconds. So each time that a user has sent this much, one event wakes it. */
	const u64 much = 64 << 10; /* bytes */
	const u64 few = 16 << 10; /* bytes */

	struct gm_user *u = bpf_map_lookup_elem(&users, &user);
	if (!u)
		return false;
	size += 8; /* its header */
	u64 sent = __sync_fetch_and_add(&u->sent, size);
	u64 waits = sent - *(volatile u64 *)&u->read + size;
	*wake = (sent ^ (sent + size)) & ~(much - 1) ? GM_RB_FORCE_WAKEUP : GM_RB_NO_WAKEUP;
	if (waits > few && waits > bpf_ringbuf_query(&events, GM_RB_RING_SIZE) -
				   bpf_ringbuf_query(&events, GM_RB_AVAIL_DATA)) {
		__sync_fetch_and_add(&u->sent, -size);
		return false;
	}
	return true;
}

/* gm_no_room undoes gm_room. */
gm_inline void gm_no_room(u32 user, u64 size)
{
	struct gm_user *u = bpf_map_lookup_elem(&users, &user);
	if (u)
		__sync_fetch_and_add(&u->sent, -(size + 8));
}

/* gm_lose counts an event that found no room. */
gm_inline void gm_lose(u32 user, u32 *pid)
{
	gm_count(GM_LOSS_RING_FULL);
	struct gm_user *u = bpf_map_lookup_elem(&users, &user);
	if (u)
		__sync_fetch_and_add(&u->lost, 1);
	struct gm_target *t = bpf_map_lookup_elem(&targets, pid);
	if (t)
		__sync_fetch_and_add(&t->lost, 1);
}

/* gm_output sends size bytes, a multiple of 8, for a user, and returns whether there was room.
 * flags replaces the wake-up flags of bpf_ringbuf_output if it is not 0. */
gm_inline bool gm_output(u32 user, void *data, u64 size, u64 flags)
{
	u64 wake;
	if (!gm_room(user, size, &wake))
		return false;
	if (!bpf_ringbuf_output(&events, data, size, flags ?: wake))
		return true;
	gm_no_room(user, size);
	return false;
}

#endif
