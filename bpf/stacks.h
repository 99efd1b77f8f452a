/* SPDX-License-Identifier: GPL-2.0 */
/* Call stacks: their ids, their way to user space, and the walk by frame pointers. */
#ifndef GM_STACKS_H
#define GM_STACKS_H

/* The stacks that user space has. If an entry is evicted, its stack is sent again. */
GM_MAP(stacks_seen, GM_MAP_LRU_HASH, 65536, 0, u64, u32);

/* gm_mix adds one word to a running 64-bit hash, by a step of MurmurHash3's 64-bit
 * finalizer. */
gm_inline u64 gm_mix(u64 h, u64 w)
{
	h ^= w;
	h *= 0xff51afd7ed558ccdULL;
	h ^= h >> 32;
	return h;
}

/* gm_send sends the first n words of s, at most max, unless user space has that stack. The
 * caller has set user, id, start, pid and frames. It returns false if there was no room: the
 * next event with that stack sends it again. */
gm_inline bool gm_send(struct gm_stack *s, u64 n, u64 max, u32 flags)
{
	u32 one = 1;
	/* This hides n from the compiler, which would drop the bound check that the verifier needs. */
	asm volatile("" : "+r"(n));
	u64 id = s->id;
	if (bpf_map_lookup_elem(&stacks_seen, &id))
		return true;
	s->type = GM_STACK;
	s->flags = flags;
	if (n > max)
		n = max;
	u64 size = __builtin_offsetof(struct gm_stack, words) + n * sizeof(u64);
	/* Wake the reader at once: it must locate the addresses before the process ends. */
	if (!gm_output(s->user, s, size, GM_RB_FORCE_WAKEUP))
		return false;
	u32 pid = s->pid;
	struct gm_target *t = bpf_map_lookup_elem(&targets, &pid);
	if (t)
		__sync_fetch_and_add(&t->bytes, size);
	bpf_map_update_elem(&stacks_seen, &id, &one, BPF_ANY);
	return true;
}

/* gm_name sets the id of s, which has up to GM_FRAMES words. */
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

/* gm_stack_fp sets the stack of th->ev by the kernel's walk of frame pointers. */
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

#endif
