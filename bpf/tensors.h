/* SPDX-License-Identifier: GPL-2.0 */
/* A random sample of tensors (--tensor-sample). The programs report the tensors in the
 * sample, and count all others in the totals of their allocator. */
#ifndef GM_TENSORS_H
#define GM_TENSORS_H

#include "exponential.h"

/* The mean distance between two sampled bytes. 0: every tensor is reported. */
const volatile u64 cfg_tensor_sample = 0;

/* A caching allocator: one for each process and device. */
struct gm_allocator_key {
	u64 start;
	u32 pid;
	s32 device;
};

struct gm_tally {
	u64 calls, bytes;
};

/* The totals that an allocator reported last, and all tensors since the trace began. Each
 * number is exact by itself. Together they may be from two calls. */
struct gm_allocator {
	u64 allocated, reserved; /* ~0: not known */
	struct gm_tally made, freed;
};

GM_MAP(allocators, GM_MAP_HASH, 4096, 0, struct gm_allocator_key, struct gm_allocator);

/* A sampled tensor that was not freed. The value is its size. */
struct gm_sample_key {
	u64 start, addr;
	u32 pid, unused;
};

/* User space sets the number of entries if cfg_tensor_sample is not 0. */
GM_MAP(samples, GM_MAP_HASH, 1, 0, struct gm_sample_key, u64);

/* The state of a thread. Each thread has a countdown of its own, so that it needs no lock. The
 * sample stays unbiased: sampled bytes are the points of a Poisson process, which has no memory,
 * and is one on any subset of the bytes. So a tensor of s bytes contains one with the probability
 * 1 - exp(-s/mean), whichever thread makes it. */
struct gm_tensors {
	u64 grown; /* the thread allocated from CUDA since it last made a tensor */
	u64 left;  /* bytes to the next sampled one, 0: not drawn yet */
	u64 ended; /* size of the tensor of GM_REPORT_END */
	struct gm_allocator_key of;
};

/* The event for a call of the allocator. */
enum gm_report {
	GM_REPORT_NOTHING,
	GM_REPORT_TENSOR,
	GM_REPORT_END,	/* the sampled tensor at this address ended */
	GM_REPORT_POOL, /* the allocator may just have allocated this memory from CUDA */
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

/* gm_sampled reports whether a tensor of size bytes contains a sampled byte. */
gm_inline bool gm_sampled(struct gm_tensors *t, u64 size)
{
	u64 left = t->left;
	if (left > size) {
		t->left = left - size;
		return false;
	}
	/* The first distance counts from the start of this tensor, the one after a sampled byte
	 * from its end. */
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

/* gm_report_of counts a call that handed out bytes at addr, or took back -bytes, and returns its
 * event (enum gm_report). Map keys are on its own stack: before Linux 5.18 the verifier accepts
 * no others here. */
gm_step u32 gm_report_of(struct gm_tensors *t, u64 addr, s64 bytes, u64 allocated, u64 reserved)
{
	if (!t)
		return GM_REPORT_NOTHING;
	bool made = bytes >= 0;
	u64 size = made ? bytes : -bytes;
	struct gm_allocator_key of = t->of;
	struct gm_allocator *a = gm_allocator_of(&of);
	if (!a) {
		gm_count(GM_LOSS_ALLOCATORS_FULL);
		return GM_REPORT_NOTHING;
	}
	gm_tally(made ? &a->made : &a->freed, size);
	/* An allocator allocates from CUDA for the tensor that it hands out next, on the same
	 * thread. Its total may stay the same, if it gave as much back. */
	u32 otherwise = (made && t->grown) || a->reserved != reserved ? GM_REPORT_POOL : GM_REPORT_NOTHING;
	if (made)
		t->grown = 0;
	a->allocated = allocated;
	a->reserved = reserved;
	struct gm_sample_key key = { .start = of.start, .addr = addr, .pid = of.pid };
	u64 *old = bpf_map_lookup_elem(&samples, &key);
	if (made && gm_sampled(t, size)) {
		if (!bpf_map_update_elem(&samples, &key, &size, BPF_ANY))
			return GM_REPORT_TENSOR;
		gm_count(GM_LOSS_SAMPLES_FULL);
		return otherwise;
	}
	if (!old)
		return otherwise;
	t->ended = *old;
	bpf_map_delete_elem(&samples, &key);
	return GM_REPORT_END;
}

#endif
