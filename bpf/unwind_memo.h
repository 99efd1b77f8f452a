/* SPDX-License-Identifier: GPL-2.0 */
/* The verified stack memo: the words that an unwind read, to find out whether a later one
 * would read the same.
 *
 * An unwind is a function of the registers, the user words that it reads, and the
 * process's mappings. Each address that it reads follows from the values before it. So if
 * the process, its mappings, ip, sp and the chain of Python frames are the same, and every
 * word that a full unwind read has the same value again, a full unwind would give the same
 * stack.
 *
 * The words are stored in nodes. A node's key is a hash of all words before it. Where its
 * words end, or where a word differs, the search continues under the hash that includes
 * this word. */
#ifndef GM_UNWIND_MEMO_H
#define GM_UNWIND_MEMO_H

#define UW_NODES 64 /* that one search reads at most */
#define UW_SOME 32 /* words of a node that one call of uw_store_words and uw_fold_path handles */
#define UW_OFF_FP 0xffffffffULL /* not memory: the frame pointer register */

/* The nodes lie in sets, by their key's path: a look-up in arrays costs a tenth of one in a hash. */
#define UW_SETS 4096 /* a power of 2 */
#define UW_WAYS 4
struct unwind_set {
	u64 path[UW_WAYS]; /* of each node, 0: none */
	u64 next;	   /* the node that is replaced next */
};
GM_MAP(unwind_sets, GM_MAP_ARRAY, UW_SETS, 0, u32, struct unwind_set);
GM_MAP(unwind_memo, GM_MAP_ARRAY, UW_SETS * UW_WAYS, 0, u32, struct unwind_node);

/* A process that user space has analysed. Others have no memo, because nothing would
 * report changes of their mappings. */
struct unwind_process {
	u32 mappings; /* their generation: user space increments it */
	u32 tls_key;  /* the key that uw_python_state read, plus 1 */
	u64 counter;  /* address of the number of the next code object (_Py_next_func_version), 0: not known */
	u64 uncounted; /* 1: the counter is none */
	u64 module_call; /* the code object that runs when a module of PyTorch is called, 0: none */
};

GM_MAP(unwind_processes, GM_MAP_HASH, 65536, 0, u32, struct unwind_process);

/* uw_add adds a word that the unwind depends on, if want is 1 and not 0. Words beyond
 * UW_WORDS are only counted. */
gm_inline void uw_add(struct unwind *u, u64 off, u64 val, u64 want)
{
	u64 n = u->words, i = n & (UW_WORDS - 1);
	u->off[i] = off;
	u->val[i] = val;
	u->words = n + want;
}

gm_inline void uw_depend(struct unwind *u, u64 at, u64 val)
{
	u64 off = at - u->sp;
	u->unfit |= off >> 32 | (off & 7);
	uw_add(u, off, val, 1);
}

/* A frame pointer matters only once an address is computed from it: in code
 * without frame pointers the register holds anything. */
gm_inline void uw_fp_loaded(struct unwind *u, u64 at, u64 val)
{
	u64 off = at - u->sp;
	u->fp_bad = off >> 32 | (off & 7);
	u->fp_off = off;
	u->fp_val = val;
	u->fp_fresh = 1;
}

/* used is 1 or 0. */
gm_inline void uw_fp_used(struct unwind *u, u64 used)
{
	u64 want = u->fp_fresh & used;
	u->unfit |= u->fp_bad & -used;
	u->fp_fresh &= ~used;
	uw_add(u, u->fp_off, u->fp_val, want);
}

/* uw_unhide returns val, or the return address that a uretprobe replaced by it. */
gm_inline u64 uw_unhide(struct unwind *u, u64 at, u64 val)
{
	return val == u->trampoline ? uw_hidden_at(u->slot, at, val) : val;
}

gm_inline u64 uw_fold(u64 h, u64 off, u64 val)
{
	return gm_mix(h, val ^ off << 32);
}

enum uw_match {
	UW_MATCH_NOT,	 /* the memo has no such words */
	UW_MATCH_STACK,	 /* u->id is the stack */
	UW_MATCH_ONWARD, /* the search continues at u->key */
};

/* uw_match_near compares words of a node with the thread's, beginning with the word `from`, as long as
 * they are equal, in u->stack, and not hidden. It returns the first one that is not. It is short, as
 * nearly all words are compared here. */
__attribute__((noinline)) u32 uw_match_near(struct unwind_node *e, u32 slot, u32 from, u32 n)
{
	struct unwind *u = uw_slot(slot);
	if (!u || !e)
		return from;
	u64 h = u->hash, near = u->near, reach = u->reach;
	u32 i = from;
	for (u32 turn = 0; turn < UW_NODE_WORDS && i < n; turn++, i++) {
		u64 j = i;
		/* Otherwise the compiler counts addresses, whose bounds the verifier does not know. */
		asm volatile("" : "+r"(j));
		j &= UW_NODE_WORDS - 1;
		u64 off = *(volatile u32 *)&e->off[j];
		if (off >= near)
			break;
		u64 have = u->stack[off / 8 & (UW_NEAR / 8 - 1)];
		if (have != *(volatile u64 *)&e->val[j])
			break;
		h = uw_fold(h, off, have);
		reach = off;
	}
	u->hash = h;
	u->reach = reach;
	return i;
}

/* uw_match_word compares one word of a node with the thread's. UW_MATCH_STACK means that it is equal. */
__attribute__((noinline)) u32 uw_match_word(struct unwind_node *e, u32 slot, u32 i)
{
	struct unwind *u = uw_slot(slot);
	if (!u || !e)
		return UW_MATCH_NOT;
	i &= UW_NODE_WORDS - 1;
	u64 off = *(volatile u32 *)&e->off[i];
	u64 want = *(volatile u64 *)&e->val[i];
	u64 have = u->fp;
	if (off != UW_OFF_FP) {
		if (!uw_word(u, u->sp + off, &have))
			return UW_MATCH_NOT;
		have = uw_unhide(u, u->sp + off, have);
		u->reach = off;
	}
	u->hash = uw_fold(u->hash, off, have);
	if (have == want)
		return UW_MATCH_STACK;
	u->key.path = u->hash;
	u->found += i + 1;
	return UW_MATCH_ONWARD;
}

/* uw_match compares the words of a node with the thread's. Another CPU may overwrite the node during
 * that: its checksum proves that all compared words are of one stack. */
__attribute__((noinline)) u32 uw_match(struct unwind_node *e, u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u || !e)
		return UW_MATCH_NOT;
	u32 n = *(volatile u64 *)&e->words, i = 0;
	u->reach = 0;
	for (u32 turn = 0; turn < UW_NODE_WORDS; turn++) {
		i = uw_match_near(e, slot, i, n);
		if (i >= n || i >= UW_NODE_WORDS)
			break;
		u32 match = uw_match_word(e, slot, i++);
		if (match != UW_MATCH_STACK)
			return match;
	}
	u64 stack = *(volatile u64 *)&e->stack, h = u->hash;
	if (gm_mix(h, stack) != *(volatile u64 *)&e->check)
		return UW_MATCH_NOT;
	u->id = stack;
	u->found += n;
	u->top = u->sp + u->reach + 8;
	u->key.path = h;
	return stack ? UW_MATCH_STACK : UW_MATCH_ONWARD;
}

gm_inline u32 uw_set(u64 path)
{
	return path >> 20 & (UW_SETS - 1);
}

/* uw_node returns the node of u->key, NULL if the memo has none. */
gm_inline struct unwind_node *uw_node(struct unwind *u)
{
	u64 path = u->key.path;
	u32 i = uw_set(path);
	struct unwind_set *s = bpf_map_lookup_elem(&unwind_sets, &i);
	if (!s)
		return NULL;
	u32 way = 0;
	while (way < UW_WAYS && *(volatile u64 *)&s->path[way] != path)
		way++;
	i = i * UW_WAYS + way;
	struct unwind_node *e = way < UW_WAYS ? bpf_map_lookup_elem(&unwind_memo, &i) : NULL;
	if (!e || e->key.path != path || e->key.pid != u->key.pid || e->key.mappings != u->key.mappings)
		return NULL;
	return e;
}

/* uw_find returns the stack that an unwind would give, or 0 if the memo does not have it.
 * Then it belongs at u->key, after u->found words. */
__attribute__((noinline)) u64 uw_find(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u->key.path = u->hash = u->seed;
	u->found = 0;
	for (u32 i = 0; i < UW_NODES; i++) {
		struct unwind_node *e = uw_node(u);
		if (!e)
			return 0;
		u32 match = uw_match(e, slot);
		if (match == UW_MATCH_STACK)
			return u->id;
		if (match == UW_MATCH_NOT)
			return 0;
	}
	u->unfit = 1;
	return 0;
}

/* uw_store_words copies the next n words of the unwind into u->node, beginning with its word
 * `from`, and folds them into u->hash. */
__attribute__((noinline)) u32 uw_store_words(u32 slot, u32 from, u32 n)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u64 h = u->hash, found = u->found;
	for (u32 i = 0; i < UW_SOME; i++) {
		if (from + i >= n)
			break;
		u32 j = (from + i) & (UW_NODE_WORDS - 1);
		u64 of = (found + from + i) & (UW_WORDS - 1);
		u64 off = u->off[of], val = u->val[of];
		h = uw_fold(h, off, val);
		u->node.off[j] = off;
		u->node.val[j] = val;
	}
	u->hash = h;
	return 0;
}

/* uw_store_node stores the next words of the unwind under u->key. It returns 0 after the
 * last ones. */
__attribute__((noinline)) u32 uw_store_node(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u64 from = u->found, n = u->words;
	u64 count = n - from;
	if (count > UW_NODE_WORDS)
		count = UW_NODE_WORDS;
	u->key.path = u->hash;
	for (u32 i = 0; i < UW_NODE_WORDS; i += UW_SOME) {
		if (i >= count)
			break;
		uw_store_words(slot, i, count);
	}
	u->node.words = count;
	u->node.stack = from + count == n ? u->id : 0;
	u->node.check = gm_mix(u->hash, u->node.stack);
	u->node.key = u->key;
	u32 i = uw_set(u->key.path);
	struct unwind_set *s = bpf_map_lookup_elem(&unwind_sets, &i);
	if (!s)
		return 0;
	u32 way = 0;
	while (way < UW_WAYS && s->path[way] != u->key.path)
		way++;
	if (way == UW_WAYS)
		way = s->next++ % UW_WAYS;
	i = i * UW_WAYS + way;
	bpf_map_update_elem(&unwind_memo, &i, &u->node, BPF_ANY);
	s->path[way] = u->key.path;
	u->found = from + count;
	return u->found < n;
}

/* uw_fold_path folds some words into u->hash, beginning with word from. It returns 0 after
 * the last word that uw_find matched. */
__attribute__((noinline)) u32 uw_fold_path(u32 slot, u32 from)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u64 h = u->hash, n = u->found;
	for (u32 i = 0; i < UW_SOME; i++) {
		u32 j = (from + i) & (UW_WORDS - 1);
		if (from + i >= n)
			break;
		h = uw_fold(h, u->off[j], u->val[j]);
	}
	u->hash = h;
	return from + UW_SOME < n;
}

/* uw_store stores the finished unwind where uw_find did not find it. */
__attribute__((noinline)) u32 uw_store(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u || u->found > u->words)
		return 0;
	/* The thread's memory may have changed since the search. */
	u->hash = u->seed;
	for (u32 i = 0; i < UW_WORDS; i += UW_SOME)
		if (!uw_fold_path(slot, i))
			break;
	if (u->hash != u->key.path)
		return 0;
	for (u32 i = 0; i <= UW_WORDS / UW_NODE_WORDS; i++)
		if (!uw_store_node(slot))
			break;
	return 1;
}

#endif
