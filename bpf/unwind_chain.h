/* SPDX-License-Identifier: GPL-2.0 */
/* What the return probe and the unwinder's chain share. They are two objects:
 * the verifier accepts each only as its own kind of BPF code. */
#ifndef GM_UNWIND_CHAIN_H
#define GM_UNWIND_CHAIN_H

/* Slots of unwind_progs, beside the unwinder's own. */
#define UW_PROG_ENTER 10
#define UW_PROG_NONE 12 /* always empty */
#define UW_PROG_MAX 13

/* internal/unwind/stats.go names them in the same order. */
enum uw_stat {
	UW_MEMO_HIT,
	UW_UNWOUND,
	UW_INCOMPLETE,
	UW_UNKNOWN_PROCESS,
	UW_NO_RECORD,
	UW_NO_CHAIN,
	UW_EMPTY,
	UW_TOO_LONG,
	UW_NOT_SENT,
	UW_NOT_KEPT,
	UW_VERIFIED,
	UW_MISMATCH,
	UW_STAT_MAX,
};

GM_MAP(unwind_stats, GM_MAP_ARRAY, UW_STAT_MAX, 0, u32, u64);

gm_inline u64 uw_count(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&unwind_stats, &what);
	if (!n)
		return 0;
	__sync_fetch_and_add(n, 1);
	return *n;
}

#endif
