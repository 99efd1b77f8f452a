/* SPDX-License-Identifier: GPL-2.0 */
/* One call: gm_enter remembers its arguments, gm_leave makes its event, gm_finish sends it. */
#ifndef GM_CALLS_H
#define GM_CALLS_H

/* gm_count_no_entry counts a return without a known entry, if the call began after its gate
 * opened. The thread knows the entry time of the call that gm_enter dropped last. Another call
 * may have begun before, unless the gate has been open for a second. */
gm_inline void gm_count_no_entry(u32 gate, struct gm_thread *th)
{
	const u64 just = 1000000000; /* ns */
	struct gm_gate *g = bpf_map_lookup_elem(&gates, &gate);
	u64 now = bpf_ktime_get_ns();
	if (g && g->since < now && (now - g->since > just || (th && th->forgotten >= g->since)))
		gm_count(GM_LOSS_NO_ENTRY);
}

/* gm_emit sends th->ev. */
gm_step u32 gm_emit(struct gm_thread *th)
{
	if (!th)
		return 0;
	u32 pid = th->ev.pid; /* a map's key: see gm_step */
	if (!gm_output(th->ev.user, &th->ev, sizeof(th->ev), 0))
		gm_lose(th->ev.user, &pid);
	return 0;
}

/* gm_charge sets the user of th->ev, adds its size to the process's costs, and clears
 * want_stack if user space asked for no such stacks. It looks at the process's target only if that
 * has changed, or if much is owed. */
gm_inline void gm_charge(struct gm_thread *th, u16 class)
{
	const u32 most = 64 * sizeof(th->ev); /* bytes */
	u32 none = 0;
	struct gm_user *all = bpf_map_lookup_elem(&users, &none);
	u64 changes = all ? *(volatile u64 *)&all->changes : 0;
	th->owed += sizeof(th->ev);
	if (!th->ev.user || th->changes != changes || th->owed > most) {
		struct gm_target *t = gm_target_of(&th->ev.pid);
		th->changes = changes;
		th->ev.user = t ? t->user : 0;
		th->shed = t ? t->shed : 0;
		if (t)
			__sync_fetch_and_add(&t->bytes, th->owed);
		th->owed = 0;
	}
	th->ev.flags = 0;
	if (!th->want_stack)
		return;
	u32 user = th->ev.user;
	u64 shed = th->shed;
	struct gm_user *u = bpf_map_lookup_elem(&users, &user);
	if (u && u->shed > shed)
		shed = u->shed;
	if (shed >= (class == GM_CLASS_TENSOR ? GM_SHED_TENSORS : GM_SHED_ALL)) {
		th->want_stack = 0;
		th->ev.flags = GM_EVENT_SHED;
	}
}

/* gm_extent returns the address of a cudaExtent passed by value. Its 24 bytes do not fit into
 * registers: System V passes it on the stack above the return address, AAPCS64 passes the
 * address of a copy in the next register. */
gm_inline void *gm_extent(struct pt_regs *ctx, u64 arg)
{
#if defined(__TARGET_ARCH_x86)
	return (void *)(ctx->sp + 8);
#else
	return (void *)arg;
#endif
}

/* gm_trampoline stores in *at the address that uretprobes write over return addresses, or 0
 * (kernel/events/uprobes.c, uprobe_get_trampoline_vaddr). */
gm_inline void gm_trampoline(u64 *at)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	struct xol_area___gm *area = task->mm->uprobes_state.xol_area;
	gm_read(*at, area->vaddr); /* the verifier may not know its type */
}

/* gm_on_signal_stack reports whether an address lies on the running thread's stack for signal
 * handlers, which may lie anywhere. */
gm_inline bool gm_on_signal_stack(u64 at)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	return at - task->sas_ss_sp < task->sas_ss_size;
}

/* gm_above_pending reports whether a signal handler calls from its own stack at sp, and that
 * stack lies above one with a pending return probe. The kernel compares stack pointers, so it
 * would drop the pending one as passed (cleanup_return_instances, kernel/events/uprobes.c). If
 * the handler's call had a return probe too, the process would then die by SIGILL. */
gm_inline bool gm_above_pending(u64 sp)
{
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	if (!gm_on_signal_stack(sp) || !task->utask)
		return false;
	struct return_instance___gm *ri = task->utask->return_instances;
	return ri && ri->stack < sp && !gm_on_signal_stack(ri->stack);
}

/* gm_left reports whether the pending call c of th is over without a return: another call comes
 * from a higher th->sp, or, on x86, the word at its own stack pointer is no longer the
 * trampoline's address. This does not hold for ioctl, which has not always a return probe, nor
 * on arm64, which replaces the link register instead. The word may outlast the call. Then the
 * call still looks pending. */
gm_inline bool gm_left(struct gm_thread *th, struct gm_call *c)
{
	if (c->sp < *(volatile u64 *)&th->sp)
		return true;
#if defined(__TARGET_ARCH_x86)
	return th->trampoline && !c->escape && !bpf_probe_read_user(&th->word, sizeof(th->word), (void *)c->sp) &&
	       th->word != th->trampoline;
#else
	return false;
#endif
}

/* gm_own reports whether the library of the pending call c makes the call that is entered: the
 * return address lies in its code, or the call is the tail of c, with the same stack pointer. If
 * not, the program makes the call, in a callback, a signal handler or on another stack. What
 * cannot be read counts as the library's. */
gm_inline bool gm_own(struct pt_regs *ctx, struct gm_thread *th, struct gm_call *c)
{
	u32 gate = gm_cookie_gate(c->cookie);
	struct gm_gate *g = bpf_map_lookup_elem(&gates, &gate);
	if (!g || !g->code_size || c->sp == th->sp)
		return true;
#if defined(__TARGET_ARCH_x86)
	if (bpf_probe_read_user(&th->word, sizeof(th->word), (void *)ctx->sp))
		return true;
#else
	th->word = ctx->regs[30];
#endif
	return th->word - (c->ip - gm_cookie_offset(c->cookie)) - g->code < g->code_size;
}

/* gm_escape returns the row of an ioctl of the kernel driver, 0 for another ioctl. It replaces
 * the arguments of a request that wraps another (nv_ioctl_xfer_t: number, size, pointer) by
 * those of the inner one. A request that cannot be read is counted. *nr is the caller's variable,
 * to save stack. */
gm_inline u32 gm_escape(struct gm_call *c, u32 *nr)
{
	const u32 wrapped = 211; /* NV_ESC_IOCTL_XFER_CMD */
	*nr = c->args[1] & 0xff;
	if ((c->args[1] >> 8 & 0xff) != 'F')
		return 0;
	if (*nr == wrapped) {
		if (bpf_probe_read_user(&c->args[6], 8, (void *)c->args[2]) ||
		    bpf_probe_read_user(&c->args[2], 8, (void *)c->args[2] + 8)) {
			gm_count(GM_LOSS_UNREADABLE);
			return 0;
		}
		*nr = c->args[6] & 0xff;
		c->args[1] = c->args[6] >> 32 << 16 | *nr;
	}
	struct gm_escape *e = bpf_map_lookup_elem(&escapes, nr);
	if (!e)
		return 0;
	if (!e->at)
		return e->row[0];
	c->args[6] = 0;
	if (bpf_probe_read_user(&c->args[6], 4, (void *)c->args[2] + e->at)) {
		gm_count(GM_LOSS_UNREADABLE);
		return 0;
	}
	for (u32 i = 0; i < GM_ESCAPE_WAYS; i++)
		if (e->row[i] && e->is[i] == (u32)c->args[6])
			return e->row[i];
	return 0;
}

/* gm_enter stores a call, and returns whether it did: if not, no return probe is needed. A call
 * that an exception or a longjmp skipped never returns. Three signs show it: a stack pointer
 * below the new call's, a second entry of its row with the same stack pointer, or a changed
 * return address. gm_enter drops that call and those inside it. (An equal stack pointer of
 * another row is a tail call, which is still pending.) One that no sign shows stays. It takes
 * no calls with it, because they are not its library's (gm_own). */
gm_inline bool gm_enter(struct pt_regs *ctx, u64 cookie)
{
	_Static_assert(GM_CALLS <= 8 && 2 * sizeof(struct gm_call) <= sizeof(struct gm_thread) -
		       __builtin_offsetof(struct gm_thread, done), "calls[7] lies in the thread's state");
	u32 row = gm_cookie_row(cookie);
	struct gm_thread *th = gm_thread_enter();
	if (!th)
		return false;
	bool above = gm_above_pending(ctx->sp);
	th->sp = ctx->sp;
	if (th->depth && !above) {
		gm_trampoline(&th->trampoline);
		for (u32 i = 0; i < GM_CALLS; i++)
			if (i < *(volatile u32 *)&th->depth &&
			    ((th->calls[i].row == row && th->calls[i].sp == th->sp) || gm_left(th, &th->calls[i]))) {
				th->forgotten = th->calls[i].time;
				th->depth = i;
			}
	}
	u32 depth = *(volatile u32 *)&th->depth;
	if (depth >= GM_CALLS) {
		gm_count(GM_LOSS_CALLS_FULL);
		return false;
	}
	struct gm_call *c = &th->calls[depth];
	c->row = row;
	c->time = bpf_ktime_get_ns();
	c->sp = *(volatile u64 *)&th->sp;
	c->ip = GM_IP(ctx);
	c->cookie = cookie;
	c->own = 0;
	if (depth) {
		/* Linux 6.1 wants a bound that it sees: the compiler would drop the mask. */
		u32 outer = depth - 1;
		asm volatile("" : "+r"(outer));
		c->own = gm_own(ctx, th, &th->calls[outer & 7]);
	}
	__builtin_memcpy(c->args, (u64[]){ GM_ARGS(ctx) }, 6 * sizeof(u64));
	struct gm_row *r = bpf_map_lookup_elem(&rows, &row);
	if (r && (r->flags & GM_ROW_EXTENT) &&
	    bpf_probe_read_user(&c->args[4], 24, gm_extent(ctx, c->args[r->stride & 7])))
		gm_count(GM_LOSS_UNREADABLE);
	c->escape = 0;
	if (r && r->class == GM_CLASS_ESCAPE) {
		c->escape = gm_escape(c, &row);
		if (!c->escape)
			return false;
	}
	if (above) {
		gm_count(GM_LOSS_SIGNAL_STACK);
		return false;
	}
	th->depth++;
	return true;
}

gm_inline void gm_context(struct gm_thread *th, u32 class, u64 arg)
{
	u32 d = th->ctx_depth;
	switch (class) {
	case GM_CLASS_CTX_PUSH:
		/* Below GM_CTX_DEPTH only the depth is known, not the contexts. */
		th->ctx_depth = ++d;
		if (d < GM_CTX_DEPTH)
			th->ctx[d] = arg;
		break;
	case GM_CLASS_CTX_POP:
		if (d > 0)
			th->ctx_depth = d - 1;
		else
			th->ctx[0] = 0; /* a context from before the trace */
		break;
	default: /* cuCtxSetCurrent(NULL) came as a pop */
		if (d < GM_CTX_DEPTH)
			th->ctx[d] = arg;
	}
	th->device = -1;
}

/* gm_capture reads the row's values into th->ev.v. */
gm_step u32 gm_capture(struct gm_thread *th, struct gm_row *row)
{
	if (!th || !row)
		return 0;
	u64 bad = 0;
	u32 first = 0;
	if (row->flags & GM_ROW_NAME) {
		bad = bpf_probe_read_user_str(th->ev.v, 32, (void *)th->done.args[0]) < 0;
		first = 4;
	}
	for (u32 i = 0; i < GM_VALUES; i++) {
		if (i < first)
			continue;
		u64 v[] = { th->done.args[row->cap[i].arg & 7], 0 };
		/* 0, 4 or 8; the mask is for the verifier, to which each test is another path. */
		u32 size = row->cap[i].size & 15;
		if (size) {
			void *at = (void *)(v[0] + row->cap[i].off);
			v[0] = 0;
			bad |= bpf_probe_read_user(v, size, at);
		}
		th->ev.v[i] = v[0];
	}
	if (row->flags & GM_ROW_FILE)
		th->ev.v[0] = gm_file(th->ev.v[0]);
	if (bad)
		gm_count(GM_LOSS_UNREADABLE);
	return 0;
}

/* gm_tensor makes the event of c10::reportMemoryUsageToProfiler (c10/core/Allocator.h) in th->ev,
 * with the function's six arguments as they are. A caching allocator calls it after it handed out
 * or took back memory, with the address, the bytes (negative: taken back), its own totals (an
 * older function has none), and at argument `stride` a c10::Device: two bytes, the type and the
 * index. There is no event for other devices than CUDA's. A row without a stride is another
 * function, which always makes an event. The function has a probe at its entry only, since an
 * exception could not pass a return probe. */
gm_inline struct gm_thread *gm_tensor(struct pt_regs *ctx, u64 cookie)
{
	const u8 cuda = 1; /* c10/core/DeviceType.h */
	u32 id = gm_cookie_row(cookie), gate = gm_cookie_gate(cookie);
	struct gm_row *row = bpf_map_lookup_elem(&rows, &id);
	u64 args[] = { GM_ARGS(ctx) };
	if (!row || (row->stride && (u8)(row->stride == 4 ? args[4] : args[2]) != cuda))
		return NULL;
	struct gm_gate *g = bpf_map_lookup_elem(&gates, &gate);
	struct gm_thread *th = gm_thread_enter();
	if (!th || !g)
		return NULL;
	th->ev.time = bpf_ktime_get_ns();
	if (th->ev.time < g->since)
		return NULL;
	__builtin_memcpy(th->ev.v, args, sizeof(args));
	th->ev.row = id;
	th->ev.outer = 0;
	th->ev.result = 0;
	th->ev.stack = 0;
	th->ev.ctx = 0;
	th->ev.device = -1;
	th->want_stack = (row->flags & GM_ROW_STACK) && (cfg_free_stacks || (s64)args[1] > 0);
	gm_charge(th, GM_CLASS_TENSOR);
	return th;
}

/* gm_leave ends the pending call of this row and makes its event in th->ev. It returns NULL if
 * there is nothing to send. th->want_stack says whether the event needs a stack. *rowp becomes
 * NULL for an event that gm_tensor has made. */
gm_inline struct gm_thread *gm_leave(struct pt_regs *ctx, struct gm_row **rowp)
{
	struct gm_thread *th = gm_thread_get(false);
	if (th && th->tensor) {
		th->tensor = 0;
		*rowp = NULL;
		return th;
	}
	u64 cookie = bpf_get_attach_cookie(ctx);
	u32 id = gm_cookie_row(cookie), gate = gm_cookie_gate(cookie);
	struct gm_row *row = bpf_map_lookup_elem(&rows, &id);
	if (!row)
		return NULL;
	u32 at = GM_CALLS, depth = th ? th->depth : 0;
	for (u32 i = 0; i < GM_CALLS; i++)
		if (th && i < depth && th->calls[i].row == id && th->calls[i].sp <= ctx->sp)
			at = i; /* one below is a call of the same function that has returned */
	if (!th || at >= GM_CALLS) {
		/* gm_enter counted the call if there was no free place. */
		if (row->class == GM_CLASS_EMIT && depth < GM_CALLS && gm_traced(gm_current_pid()))
			gm_count_no_entry(gate, th);
		return NULL;
	}
	th->done = th->calls[at];
	th->depth = at;
	s32 result = GM_RET(ctx);
	if (row->class == GM_CLASS_ESCAPE) {
		id = th->done.escape;
		row = bpf_map_lookup_elem(&rows, &id);
		if (!row)
			return NULL;
		if (row->flags & GM_ROW_POINTER &&
		    bpf_probe_read_user(&th->done.args[6], 8, (void *)th->done.args[2] + row->stride))
			th->done.args[6] = 0;
	}

	switch (row->class) {
	case GM_CLASS_EMIT:
		break;
	case GM_CLASS_CTX_SET:
	case GM_CLASS_CTX_PUSH:
	case GM_CLASS_CTX_POP:
		if (!result)
			gm_context(th, row->class == GM_CLASS_CTX_SET && !th->done.args[0] ? GM_CLASS_CTX_POP : row->class,
				   th->done.args[0]);
		return NULL;
	case GM_CLASS_CTX_DEVICE:
		if (!result && !((row->flags & GM_ROW_CTX_ARG) && th->done.args[1]))
			bpf_probe_read_user(&th->device, 4, (void *)th->done.args[0]);
		return NULL;
	case GM_CLASS_DEVICE_SET:
		if (!result)
			th->device = th->done.args[0];
		return NULL;
	default:
		return NULL;
	}
	if ((row->flags & GM_ROW_SKIP_NULL) && !th->done.args[0])
		return NULL;
	struct gm_gate *g = bpf_map_lookup_elem(&gates, &gate);
	if (!g || th->done.time < g->since)
		return NULL;

	/* A function that allocates may call another one through its exported symbol. The event of
	 * the outer call, which is the program's, then covers both. The same holds for frees. A
	 * call that the program makes itself, while another one is pending, counts for itself. */
	u32 outer = 0;
	bool nested = false;
	bool stack = row->flags & GM_ROW_STACK;
	for (u32 i = 0; i < GM_CALLS; i++) {
		if (i >= at)
			break;
		u32 key = th->calls[i].row;
		struct gm_row *r = bpf_map_lookup_elem(&rows, &key);
		if (!r)
			continue;
		if (row->flags & GM_ROW_KERNEL) {
			if (r->class != GM_CLASS_EMIT && r->class != GM_CLASS_CAUSE)
				continue;
			outer = key;
			stack = row->flags & GM_ROW_STACK &&
				!(row->flags & GM_ROW_BACKING && r->flags & GM_ROW_BACKED);
			continue;
		}
		if (r->class == GM_CLASS_EMIT &&
		    (r->flags & (GM_ROW_ALLOCATES | (row->flags & GM_ROW_FREES))))
			nested = true;
		nested = nested && th->calls[i + 1].own;
		if (r->class == GM_CLASS_AROUND)
			outer = key;
	}
	if (nested) {
		gm_count(GM_LOSS_NESTED);
		return NULL;
	}

	th->ev.row = id;
	th->ev.outer = outer;
	th->ev.time = (row->flags & GM_ROW_ENTRY_TIME) ? th->done.time : bpf_ktime_get_ns();
	th->ev.result = result;
	th->ev.stack = 0;
	if (!(row->flags & GM_ROW_LIST))
		gm_capture(th, row);
	if ((row->flags & GM_ROW_PUSHES) && !result)
		gm_context(th, GM_CLASS_CTX_PUSH, th->ev.v[0]);
	u32 d = th->ctx_depth;
	if ((row->flags & GM_ROW_POPS) && !result && d < GM_CTX_DEPTH &&
	    th->ctx[d] == th->done.args[0])
		gm_context(th, GM_CLASS_CTX_POP, 0);
	th->ev.ctx = d < GM_CTX_DEPTH ? th->ctx[d] : 0;
	th->ev.device = th->device;
	th->want_stack = stack;
	gm_charge(th, row->class);
	*rowp = row;
	return th;
}

/* gm_finish sends the event, or one for each element of a list. */
gm_inline void gm_finish(struct gm_thread *th, struct gm_row *row)
{
	if (!row || !(row->flags & GM_ROW_LIST)) {
		gm_emit(th);
		return;
	}
	u32 n = th->done.args[1];
	if (n > GM_LIST_MAX)
		gm_count(GM_LOSS_LIST_LONG);
	for (u32 i = 0; i < GM_LIST_MAX; i++) {
		if (i >= n)
			break;
		gm_capture(th, row);
		gm_emit(th);
		th->done.args[0] += row->stride;
	}
}

#endif
