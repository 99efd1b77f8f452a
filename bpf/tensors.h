/* SPDX-License-Identifier: GPL-2.0 */
/* Which tensors are told where not all are: a random sample, those of some size, or
 * both. What is not told ends here after as few steps as there can be, and is in the
 * sums that the kernel keeps of each allocator. Included by gpumemtrace.h. */
#ifndef GM_TENSORS_H
#define GM_TENSORS_H

#include "exponential.h"

/* The mean distance between two sampled bytes, 0: every tensor is told. */
const volatile u64 cfg_tensor_sample = 0;
/* Tensors of fewer bytes are not told. */
const volatile u64 cfg_tensor_min = 0;

/* The caching allocator of a process and a device. */
struct gm_allocator_key {
	u64 start;
	u32 pid;
	s32 device;
};

struct gm_tally {
	u64 calls, bytes;
};

/* What an allocator said last, and what passed through it since the trace began: [1]
 * of tensors smaller than cfg_tensor_min, [0] of the others. Each number is right by
 * itself; together they may be those of two calls. */
struct gm_allocator {
	u64 allocated, reserved; /* ~0: it does not tell */
	struct gm_tally made[2], freed[2];
};

GM_MAP(allocators, GM_MAP_HASH, 4096, 0, struct gm_allocator_key, struct gm_allocator);

/* A sampled tensor that has not been freed, by its size. */
struct gm_sample_key {
	u64 start, addr;
	u32 pid, unused;
};

/* One entry in place of what is set with cfg_tensor_sample. */
GM_MAP(samples, GM_MAP_HASH, 1, 0, struct gm_sample_key, u64);

/* A thread's part. The countdown is the thread's own, which takes no lock and no
 * atomic step. It is unbiased all the same: sampled bytes are the points of a Poisson
 * process, which has no memory and is one on whatever part of the bytes it is looked
 * at, so that a tensor of s bytes has one with the probability 1 - exp(-s/mean),
 * whichever thread makes it and however many there are. */
struct gm_tensors {
	u64 grown; /* CUDA gave memory since the thread last made a tensor */
	u64 left;  /* bytes to the next sampled one, 0: not drawn yet */
	u64 ended; /* size of the tensor that GM_TELL_END is of */
	struct gm_allocator_key of;
};

enum gm_tell {
	GM_TELL_NOTHING,
	GM_TELL_TENSOR,
	GM_TELL_END,  /* of the sampled tensor that is thought to be there */
	GM_TELL_POOL, /* where memory is that the allocator may just have taken from CUDA */
};

gm_inline struct gm_allocator *gm_allocator_of(struct gm_allocator_key *of)
{
	struct gm_allocator *a = bpf_map_lookup_elem(&allocators, of);
	if (a)
		return a;
	struct gm_allocator none = {};
	bpf_map_update_elem(&allocators, of, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&allocators, of);
}

gm_inline void gm_tally(struct gm_tally *n, u64 size)
{
	__sync_fetch_and_add(&n->calls, 1);
	__sync_fetch_and_add(&n->bytes, size);
}

/* gm_sampled tells whether one of so many bytes is a sampled one. */
gm_inline bool gm_sampled(struct gm_tensors *t, u64 size)
{
	u64 left = t->left;
	if (left > size) {
		t->left = left - size;
		return false;
	}
	/* Not drawn yet, or reached: what is drawn then counts from here on, or from
	 * behind this tensor on. */
	for (u32 i = 0; i < 2; i++) {
		bool reached = left && left <= size;
		u64 next = gm_exponential(bpf_get_prandom_u32(), cfg_tensor_sample);
		if (reached) {
			t->left = next;
			return true;
		}
		left = next;
		if (left > size)
			break;
	}
	t->left = left - size;
	return false;
}

/* gm_tell counts a call by which so many bytes at addr were handed out, or with a minus
 * taken back, and returns what of it is told (enum gm_tell). Keys are on its own stack:
 * before Linux 5.18 they may be nowhere else that it sees. */
gm_step u32 gm_tell(struct gm_tensors *t, u64 addr, s64 bytes, u64 allocated, u64 reserved)
{
	if (!t)
		return GM_TELL_NOTHING;
	bool made = bytes >= 0;
	u64 size = made ? bytes : -bytes;
	bool small = size < cfg_tensor_min;
	struct gm_allocator_key of = t->of;
	struct gm_allocator *a = gm_allocator_of(&of);
	if (!a) {
		gm_count(GM_LOSS_ALLOCATORS_FULL);
		return GM_TELL_NOTHING;
	}
	if (made)
		gm_tally(small ? &a->made[1] : &a->made[0], size);
	else
		gm_tally(small ? &a->freed[1] : &a->freed[0], size);
	/* An allocator that takes memory from CUDA does so for the tensor that it hands
	 * out next, on the same thread. What it holds may stay the same: it may have
	 * given as much back. */
	u32 otherwise = (made && t->grown) || a->reserved != reserved ? GM_TELL_POOL : GM_TELL_NOTHING;
	if (made)
		t->grown = 0;
	a->allocated = allocated;
	a->reserved = reserved;
	if (!cfg_tensor_sample)
		return small ? otherwise : GM_TELL_TENSOR;

	struct gm_sample_key key = { .start = of.start, .addr = addr, .pid = of.pid };
	u64 *old = bpf_map_lookup_elem(&samples, &key);
	if (made && !small && gm_sampled(t, size)) {
		if (!bpf_map_update_elem(&samples, &key, &size, BPF_ANY))
			return GM_TELL_TENSOR;
		gm_count(GM_LOSS_SAMPLES_FULL);
		return otherwise;
	}
	if (!old)
		return otherwise;
	t->ended = *old;
	bpf_map_delete_elem(&samples, &key);
	return GM_TELL_END;
}

#endif
