//go:build ignore

/* SPDX-License-Identifier: GPL-2.0 */
/* The return probe where stacks are unwound. */
#include "gpumemtrace.h"
#include "unwind_chain.h"

GM_MAP(unwind_progs, GM_MAP_PROG_ARRAY, UW_PROG_MAX, 0, u32, u32);

char LICENSE[] SEC("license") = "GPL";

SEC("uretprobe")
int gm_call_exit_unwind(struct pt_regs *ctx)
{
	struct gm_row *row;
	struct gm_thread *th = gm_leave(ctx, &row);
	if (!th)
		return 0;
	if (th->want_stack) {
		bpf_tail_call(ctx, &unwind_progs, UW_PROG_ENTER);
		uw_count(UW_NO_CHAIN);
		gm_stack_fp(ctx, th);
	}
	gm_finish(th, row);
	return 0;
}
