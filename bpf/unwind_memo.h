/* SPDX-License-Identifier: GPL-2.0 */
/* The verified stack memo: what an unwind read, and whether a later one would
 * read the same.
 *
 * An unwind is a function of the registers, of the user words that it reads
 * and of the process's mappings. Every step's address follows from the values
 * before it. So when the process, its mappings, ip, sp and the chain of Python
 * frames are the same, and every word in the list of words that a full unwind
 * read holds what it held then, a full unwind would give the same stack.
 *
 * Two stacks may agree in ip and sp and differ further out. Where a word
 * differs the search goes on under a key made of all words up to and including
 * it, where a stack with that word may be known. */
#ifndef GM_UNWIND_MEMO_H
#define GM_UNWIND_MEMO_H

#define UW_WORDS 256
#define UW_LEVELS 8
#define UW_HIDDEN 8
#define UW_WINDOW 64 /* words of stack that are read at once */
#define UW_OFF_FP 0xffffffffULL /* not memory: the frame pointer register */

struct unwind_key {
	u64 start;
	u32 pid;
	u32 mappings; /* generation of the process's mappings */
	u64 ip;
	u64 sp;
	u64 path; /* of the Python frames, and of the words up to a branch */
};

/* LRU entries are reused without a grace period: check proves that what was
 * compared is all of one entry. */
struct unwind_entry {
	u64 stack;
	u64 check;
	u64 words;
	u32 off[UW_WORDS]; /* from sp, bytes */
	u64 val[UW_WORDS];
};

struct unwind_hidden {
	u64 at;
	u64 address;
};

/* One thread's unwind. */
struct unwind {
	PerCPURecord record;
	struct unwind_key key;
	struct unwind_entry entry;
	u64 seed; /* key.path before the first word */
	u64 fp;	  /* the register */
	u64 fp_off, fp_val, fp_bad; /* where the frame pointer in use came from */
	u64 fp_fresh; /* 1: not among the words yet */
	u64 trampoline; /* what pending uretprobes put in place of return addresses */
	struct unwind_hidden hidden[UW_HIDDEN];
	/* Of the search. In memory, where the verifier does not follow values. */
	u64 level;
	u64 window_off; /* from sp, bytes */
	u64 window[UW_WINDOW];
	u64 expect; /* a memo hit that is being verified */
	/* Not 0: a later unwind may come out otherwise though the words are the
	 * same, or they are not what uw_find can read. */
	u64 keep_out;
};

GM_MAP(unwinds, GM_MAP_TASK_STORAGE, 0, GM_F_NO_PREALLOC, int, struct unwind);

GM_MAP(unwind_memo, GM_MAP_LRU_HASH, 8192, 0, struct unwind_key, struct unwind_entry);

/* Generation of each process's mappings; user space counts it up. A process
 * without one has no memo: nobody could tell when its mappings change. */
GM_MAP(unwind_mappings, GM_MAP_HASH, 65536, GM_F_NO_PREALLOC, u32, u32);

struct return_instance___gm {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance___gm *next;
} GM_CORE;
struct uprobe_task___gm {
	struct return_instance___gm *return_instances;
} GM_CORE;
struct task_struct___gm_uw {
	struct uprobe_task___gm *utask;
} GM_CORE;

gm_inline struct unwind *uw_get(u64 flags)
{
	return bpf_task_storage_get(&unwinds, bpf_get_current_task_btf(), NULL, flags);
}

/* The next four are in the unwinder's innermost loops, where each branch would
 * double the paths that the verifier walks: they have none. */

/* uw_add adds a word to those that the unwind depends on, when want is 1 and
 * not 0. Words beyond UW_WORDS are counted only. */
gm_inline void uw_add(struct unwind *u, u64 off, u64 val, u64 want)
{
	u64 n = u->entry.words, i = n & (UW_WORDS - 1);
	u->entry.off[i] = off;
	u->entry.val[i] = val;
	u->entry.words = n + want;
}

gm_inline void uw_note(struct unwind *u, u64 at, u64 val)
{
	u64 off = at - u->key.sp;
	u->keep_out |= off >> 32 | (off & 7);
	uw_add(u, off, val, 1);
}

/* A frame pointer matters only once an address is computed from it: in code
 * without frame pointers the register holds anything. */
gm_inline void uw_fp_loaded(struct unwind *u, u64 at, u64 val)
{
	u64 off = at - u->key.sp;
	u->fp_bad = off >> 32 | (off & 7);
	u->fp_off = off;
	u->fp_val = val;
	u->fp_fresh = 1;
}

/* used is 1 or 0. */
gm_inline void uw_fp_used(struct unwind *u, u64 used)
{
	u64 want = u->fp_fresh & used;
	u->keep_out |= u->fp_bad & -used;
	u->fp_fresh &= ~used;
	uw_add(u, u->fp_off, u->fp_val, want);
}

/* uw_hidden lists the return addresses that pending uretprobes hide, innermost
 * first (kernel/events/uprobes.c, prepare_uretprobe). */
gm_inline void uw_hidden(struct unwind *u)
{
	struct task_struct___gm_uw *task = (void *)bpf_get_current_task_btf();
	struct uprobe_task___gm *utask;
	struct return_instance___gm *ri, *next;

	u->trampoline = ~0ULL; /* no return address */
	gm_read(utask, task->utask);
	if (!utask)
		return;
	gm_read(ri, utask->return_instances);
	if (!ri)
		return;
	gm_trampoline(&u->trampoline);
	for (u32 i = 0; i < UW_HIDDEN; i++) {
		u->hidden[i].at = 0;
		if (!ri)
			continue;
		gm_read(u->hidden[i].at, ri->stack);
		gm_read(u->hidden[i].address, ri->orig_ret_vaddr);
		gm_read(next, ri->next);
		ri = next;
	}
}

/* uw_unhide returns the return address that belongs at the user address at.
 * x86 hides the word at the stack pointer of the function's entry; arm64 hides
 * the link register, which the function then saves below that. There is no
 * branch in the search: each would double the paths that the verifier walks. */
gm_inline u64 uw_unhide(struct unwind *u, u64 at, u64 val)
{
	if (val != u->trampoline)
		return val;
	for (s32 i = UW_HIDDEN - 1; i >= 0; i--) {
#if defined(__x86_64__)
		u64 x = at ^ u->hidden[i].at;
		u64 here = ((x | -x) >> 63) - 1;
#else
		u64 here = (s64)(at - u->hidden[i].at - 1) >> 63;
#endif
		asm volatile("" : "+r"(here));
		val = (u->hidden[i].address & here) | (val & ~here);
	}
	return val;
}

/* uw_begin prepares u for the unwind or the search that starts at ctx. */
gm_inline void uw_begin(struct unwind *u, struct gm_thread *th, struct pt_regs *ctx)
{
	u32 pid = th->ev.pid;
	u32 *mappings = bpf_map_lookup_elem(&unwind_mappings, &pid);
	u->key.start = th->ev.start;
	u->key.pid = pid;
	u->key.mappings = mappings ? *mappings : 0;
	u->keep_out = !mappings;
#if defined(__x86_64__)
	u->key.ip = ctx->ip;
	u->key.sp = ctx->sp;
	u->fp = ctx->bp;
#else
	u->key.ip = ctx->pc;
	u->key.sp = ctx->sp;
	u->fp = ctx->regs[29];
#endif
	u->entry.words = 0;
	u->fp_off = UW_OFF_FP;
	u->fp_val = u->fp;
	u->fp_fresh = 1;
	u->fp_bad = 0;
	u->expect = 0;
	uw_hidden(u);
}

#define UW_NO_WINDOW (1ULL << 63)

/* uw_load reads the word at off from sp, and with it the words above. */
gm_inline long uw_load(struct unwind *u, u64 off, u64 *val)
{
	u64 i = (off - u->window_off) >> 3;
	if (i >= UW_WINDOW) {
		void *at = (void *)(u->key.sp + off);
		u->window_off = off;
		i = 0;
		if (bpf_probe_read_user(u->window, sizeof(u->window), at)) {
			/* The outermost frames may lie closer to the stack's end. */
			u->window_off = UW_NO_WINDOW;
			if (bpf_probe_read_user(u->window, sizeof(u->window[0]), at))
				return -1;
		}
	}
	*val = u->window[i & (UW_WINDOW - 1)];
	return 0;
}

gm_inline u64 uw_fold(u64 h, u64 off, u64 val)
{
	return gm_mix(h, val ^ off << 32);
}

/* uw_find returns the stack that an unwind would give, or 0 when it is not
 * known; then u->key is where it belongs. u->key.path is u->seed at first. */
gm_inline u64 uw_find(struct unwind *u)
{
	u64 h = u->seed;
	struct unwind_entry *e = bpf_map_lookup_elem(&unwind_memo, &u->key);
	if (!e)
		return 0;
	u->level = 1;
	u->window_off = UW_NO_WINDOW;
	for (u32 i = 0; i < UW_WORDS; i++) {
		if (i >= *(volatile u64 *)&e->words)
			break;
		u64 off = *(volatile u32 *)&e->off[i];
		u64 want = *(volatile u64 *)&e->val[i];
		u64 have = u->fp;
		if (off != UW_OFF_FP) {
			if (uw_load(u, off, &have))
				return 0;
			have = uw_unhide(u, u->key.sp + off, have);
		}
		h = uw_fold(h, off, have);
		if (have == want)
			continue;
		if (u->level++ == UW_LEVELS)
			return 0;
		u->key.path = h;
		e = bpf_map_lookup_elem(&unwind_memo, &u->key);
		if (!e)
			return 0;
	}
	u64 stack = *(volatile u64 *)&e->stack;
	return gm_mix(h, stack) == *(volatile u64 *)&e->check ? stack : 0;
}

/* uw_keep remembers the finished unwind under u->key. */
gm_inline void uw_keep(struct unwind *u, u64 stack)
{
	u64 h = u->seed, n = u->entry.words;
	for (u32 i = 0; i < UW_WORDS; i++) {
		if (i >= n)
			break;
		h = uw_fold(h, u->entry.off[i], u->entry.val[i]);
	}
	u->entry.stack = stack;
	u->entry.check = gm_mix(h, stack);
	bpf_map_update_elem(&unwind_memo, &u->key, &u->entry, BPF_ANY);
}

#endif
