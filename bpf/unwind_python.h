/* SPDX-License-Identifier: GPL-2.0 */
/* A thread's Python frames, read before the stack is unwound: the memo needs all
 * of them, and the unwind takes them from here, a run of the interpreter at a
 * time. What a frame depends on is what the unwinder's process_python_frame
 * (python_tracer.ebpf.c) reads. */
#ifndef GM_UNWIND_PYTHON_H
#define GM_UNWIND_PYTHON_H

/* Bytes of a frame that are read at most: PyFrameObject of 3.8 is the largest. */
#define UW_PYTHON_FRAME 128
/* The four fields of a code object lie no further apart, bytes. */
#define UW_PYTHON_COUNTS 28
/* Bytes of a code object, from the first of the four fields to its line table. */
#define UW_PYTHON_CODE 112
/* Bytes of a file's name that tell: its last ones. */
#define UW_PYTHON_FILE 64
/* CO_OPTIMIZED, which only functions have (Include/cpython/code.h). */
#define UW_PYTHON_OPTIMIZED 1
/* Times that u->python is filled: 8,192 frames. */
#define UW_PYTHON_FILLS 16

/* uw_python_done goes on with the native frames, those of the interpreter among
 * them. */
gm_inline void uw_python_done(struct unwind *u)
{
	u->py_done = 1;
	u->record.unwindersDone |= 1 << PROG_UNWIND_PYTHON;
	u->step = u->py_late ? UW_STOP : UW_NATIVE;
}

/* uw_python_late places the frames that are left when the native ones have ended:
 * a walk that was cut lacks their runs of the interpreter, and CPython 3.11 lists
 * generators that wait in gen.throw() as if they ran (_gen_throw,
 * Objects/genobject.c). */
gm_inline void uw_python_late(struct unwind *u)
{
	if (u->py_done || (u->py_placed >= u->py_read && !u->py_frame))
		return;
	u->py_late = UW_FRAME_LATE;
	u->step = UW_INTERPRETER;
}

gm_inline u64 uw_least(u64 a, u64 b) { return a < b ? a : b; }
gm_inline u64 uw_most(u64 a, u64 b) { return a > b ? a : b; }

/* uw_small reads a word of which nothing around it is wanted. */
gm_inline bool uw_small(u64 at, u64 *word)
{
	return !bpf_probe_read_user(word, sizeof(*word), (void *)at);
}

/* uw_python_state finds the thread's innermost Python frame, as the unwinder's
 * get_PyFrame does (python_tracer.ebpf.c). It returns an error or ERR_OK. From
 * CPython 3.13 on a thread's state is in a variable of its own, but not while it
 * has released the GIL; before, and then, it is in a slot of pthread's, whose key is
 * made when the interpreter starts, and kept in process. */
gm_inline ErrorCode uw_python_state(struct unwind *u, struct unwind_process *process)
{
	void *base;
	u64 at, state = 0, key;
	if (tsd_get_base(&base))
		return ERR_PYTHON_READ_TSD_BASE;
	if (u->py.tls_offset && !uw_small((u64)base + u->py.tls_offset, &state))
		return ERR_PYTHON_READ_THREAD_STATE_ADDR;
	if (!state && u->py.tsdInfo.multiplier) {
		key = process ? process->tls_key : 0;
		if (!key) {
			if (!uw_small(u->py.autoTLSKeyAddr, &key))
				return ERR_PYTHON_BAD_AUTO_TLS_KEY_ADDR;
			key = (u32)key + 1;
			if (process)
				process->tls_key = key;
		}
		at = (u64)base + u->py.tsdInfo.offset;
		if (u->py.tsdInfo.indirect && !uw_small(at, &at))
			return ERR_PYTHON_READ_THREAD_STATE_ADDR;
		at += (key - 1) * u->py.tsdInfo.multiplier;
		if (!uw_small(at, &state))
			return ERR_PYTHON_READ_THREAD_STATE_ADDR;
	}
	if (!state)
		return ERR_PYTHON_ZERO_THREAD_STATE;
	if (!uw_small(state + u->py.PyThreadState_frame, &at))
		return ERR_PYTHON_BAD_THREAD_STATE_FRAME_ADDR;
	if (u->py.frame_is_cframe && !uw_small(at + u->py.PyCFrame_current_frame, &at))
		return ERR_PYTHON_BAD_CFRAME_CURRENT_FRAME_ADDR;
	u->py_first = u->py_frame = at;
	return ERR_OK;
}

/* uw_python_begin prepares for a thread's Python frames. A thread without Python has
 * none, and u->py_error says why. */
gm_inline void uw_python_begin(struct unwind *u, struct unwind_process *process)
{
	u32 pid = u->key.pid;
	u->py_first = u->py_frame = u->py_hash = 0;
	u->py_read = u->py_placed = u->py_error = u->py_done = u->py_late = 0;
	const PyProcInfo *py = bpf_map_lookup_elem(&py_procs, &pid);
	if (!py) {
		u->py_error = ERR_PYTHON_NO_PROC_INFO;
		return;
	}
	u->py = *py;
	/* CPython 3.10 does not say where f_lasti is (struct _frame,
	 * Include/cpython/frameobject.h), and the unwinder takes it to be at 0. */
	if (u->py.version == 0x030a && !u->py.PyFrameObject_f_lasti)
		u->py.PyFrameObject_f_lasti = 96;
	u64 args = u->py.PyCodeObject_co_argcount, kwargs = u->py.PyCodeObject_co_kwonlyargcount;
	u64 flags = u->py.PyCodeObject_co_flags, line = u->py.PyCodeObject_co_firstlineno;
	u64 first = uw_least(uw_least(args, kwargs), uw_least(flags, line));
	u64 last = uw_most(uw_most(args, kwargs), uw_most(flags, line));
	u->code_at = first;
	/* What follows a frame may lie in a page that nobody has touched yet. */
	u->frame_size = 8 + uw_most(uw_most(u->py.PyFrameObject_f_code, u->py.PyFrameObject_f_back),
				    uw_most(u->py.PyFrameObject_f_lasti, u->py.PyFrameObject_entry_member));
	if (last - first > UW_PYTHON_COUNTS || u->frame_size > UW_PYTHON_FRAME)
		u->py_error = ERR_UNREACHABLE;
	else
		u->py_error = uw_python_state(u, process);
}

/* uw_code_file mixes into h the end of what the string at file says
 * (Include/cpython/unicodeobject.h). It returns 0 when that cannot be read. */
gm_inline u64 uw_code_file(struct unwind *u, u64 h, u64 file)
{
	u64 *text = (u64 *)u->code;
	if (bpf_probe_read_user(text, 40, (void *)file))
		return 0;
	u64 size = text[2] < 4096 ? text[2] : 4096, state = text[4];
	size *= state >> 2 & 7; /* bytes of a character */
	u64 at = u->py.version < 0x030c ? 48 : 40;
	if (!(state & 64)) /* not all ASCII */
		at += u->py.version < 0x030c ? 24 : 16;
	u64 n = size < UW_PYTHON_FILE ? size : UW_PYTHON_FILE;
	__builtin_memset(text, 0, UW_PYTHON_FILE);
	if (n && bpf_probe_read_user(text, uw_bytes(n, UW_PYTHON_FILE), (void *)(file + at + size - n)))
		return 0;
	for (u32 i = 0; i < UW_PYTHON_FILE / 8; i++)
		h = gm_mix(h, text[i]);
	return gm_mix(h, size);
}

/* uw_code returns what tells the code object at an address from others that come to
 * lie there, 0 if it cannot be read. Code of modules and classes runs once, and all
 * that it points to comes to lie where that of the one before did: there the name
 * of its file tells. internal/unwind/pycode.go computes the same. */
gm_inline u32 uw_code(struct unwind *u, u64 code)
{
	struct unwind_code *c = &u->codes[(code >> 4 ^ code >> 9) & (UW_CODES - 1)];
	if (c->at == code)
		return c->id;
	c->at = code;
	c->id = 0;
	if (bpf_probe_read_user(u->code, UW_PYTHON_CODE, (void *)(code + u->code_at))) {
		u->keep_out = 1;
		return 0;
	}
	u64 first = u->code_at, room = 127;
	u32 args = *(u32 *)&u->code[(u->py.PyCodeObject_co_argcount - first) & room];
	u32 kwargs = *(u32 *)&u->code[(u->py.PyCodeObject_co_kwonlyargcount - first) & room];
	u32 flags = *(u32 *)&u->code[(u->py.PyCodeObject_co_flags - first) & room];
	u32 line = *(u32 *)&u->code[(u->py.PyCodeObject_co_firstlineno - first) & room];
	/* co_filename, then co_name, then from 3.11 on co_qualname, then the line table
	 * (Include/code.h, Include/cpython/code.h). */
	u64 names = 112, lines = 136;
	if (!u->py.lasti_is_codeunit) {
		names = u->py.version < 0x0308 ? 96 : 104;
		lines = names + 16;
	}
	u64 file = *(u64 *)&u->code[(names - first) & room];
	u64 h = gm_mix(gm_mix(file, *(u64 *)&u->code[(names + 8 - first) & room]),
		       *(u64 *)&u->code[(lines - first) & room]);
	if (!(flags & UW_PYTHON_OPTIMIZED)) {
		h = uw_code_file(u, h, file);
		if (!h) {
			u->keep_out = 1;
			return 0;
		}
	}
	c->id = (u32)(((args << 25) + (kwargs << 18) + (flags << 10) + line) ^ (u32)(h ^ h >> 32));
	return c->id;
}

/* uw_python_bytes returns where the wanted bytes of the frame at the address at are,
 * or NULL if they cannot be read. */
gm_inline u8 *uw_python_bytes(struct unwind *u, u64 at)
{
	u64 in = at & (UW_PAGE - 1);
	if (in <= UW_PAGE - UW_PYTHON_FRAME) {
		u8 *bytes = uw_page(u, at);
		return bytes ? bytes + in : NULL;
	}
	u64 size = u->frame_size & (UW_PYTHON_FRAME | (UW_PYTHON_FRAME - 1));
	return bpf_probe_read_user(u->frame, size, (void *)at) ? NULL : u->frame;
}

/* uw_python_frame reads the frame at u->py_frame and puts it into u->python. It
 * returns 0 when there is none. */
__attribute__((noinline)) u32 uw_python_frame(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u64 at = u->py_frame;
	u32 n = u->py_read;
	if (!at || n >= UW_PYTHON)
		return 0;
	u8 *frame = uw_python_bytes(u, at);
	if (!frame) {
		u->py_error = ERR_PYTHON_BAD_FRAME_OBJECT_ADDR;
		u->py_frame = 0;
		u->keep_out = 1;
		return 0;
	}
	/* The masks are for the verifier: frame_size was checked. */
	u64 room = UW_PYTHON_FRAME - 8;
	u64 code = *(u64 *)&frame[u->py.PyFrameObject_f_code & room];
	u64 back = *(u64 *)&frame[u->py.PyFrameObject_f_back & room];
	u64 last = *(u64 *)&frame[u->py.PyFrameObject_f_lasti & room];
	u64 where = 0, flags = 0;
	if (u->py.noneStructAddr && code == u->py.noneStructAddr) {
		flags = UW_PYTHON_ENTRY | UW_PYTHON_SHIM;
		code = 0;
	} else {
		s32 lasti = last;
		if (u->py.lasti_is_codeunit) {
			/* The address of an instruction of two bytes (3.11). */
			s64 diff = last - code - u->py.PyCodeObject_sizeof;
			if (diff < -2 || diff > 0x10000000)
				diff = -2;
			lasti = (s32)diff >> 1;
			if (frame[u->py.PyFrameObject_entry_member & (UW_PYTHON_FRAME - 1)] ==
			    u->py.PyFrameObject_entry_val)
				flags = UW_PYTHON_ENTRY;
		} else {
			/* Each frame has a run of the interpreter of its own. */
			flags = UW_PYTHON_ENTRY;
		}
		if (code)
			where = (u64)(u32)lasti << 32 | uw_code(u, code);
	}
	struct unwind_python *f = &u->python[n & (UW_PYTHON - 1)];
	f->code = code | flags;
	f->where = where;
	u->py_hash = gm_mix(gm_mix(u->py_hash, code | flags), where);
	u->py_read = n + 1;
	u->py_frame = back;
	return back != 0;
}

/* uw_python_more reads the next frames, as many as u->python holds. It returns
 * whether there are more. */
gm_inline u32 uw_python_more(struct unwind *u, u32 slot)
{
	u->py_read = u->py_placed = 0;
	for (u32 i = 0; i < UW_PYTHON; i++)
		if (!uw_python_frame(slot))
			break;
	return u->py_frame != 0;
}

__attribute__((noinline)) u32 uw_python_fill(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	return u ? uw_python_more(u, slot) : 0;
}

/* uw_python_all reads all frames; of more than u->python holds the first stay
 * there. The thread's memory cannot be relied on to end. */
__attribute__((noinline)) u32 uw_python_all(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u || !uw_python_fill(slot))
		return 0;
	u32 more = 1;
	for (u32 i = 0; i < UW_PYTHON_FILLS && more; i++)
		more = uw_python_fill(slot);
	u->keep_out |= more;
	u64 hash = u->py_hash;
	u->py_frame = u->py_first;
	uw_python_fill(slot);
	u->py_hash = hash;
	return 1;
}

/* uw_python places the frames of one run of the interpreter. */
__attribute__((noinline)) u32 uw_python(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u32 i = u->py_placed;
	if (i >= u->py_read && u->py_frame) {
		u64 hash = u->py_hash;
		uw_python_more(u, slot); /* not a call more: Linux 5.15 has 512 bytes of stack for all */
		u->py_hash = hash;
		i = 0;
	}
	if (i >= u->py_read) {
		if (!u->error)
			u->error = u->py_error ?: ERR_PYTHON_ZERO_THREAD_STATE;
		uw_python_done(u);
		return 0;
	}
	struct unwind_python *f = &u->python[i & (UW_PYTHON - 1)];
	u64 code = f->code;
	if (!(code & UW_PYTHON_SHIM))
		uw_push(u, UW_FRAME_PYTHON | u->py_late, code & ~(UW_PYTHON_ENTRY | UW_PYTHON_SHIM), f->where);
	u->py_placed = i + 1;
	if (i + 1 >= u->py_read && !u->py_frame && !u->py_error)
		uw_python_done(u);
	else if (code & UW_PYTHON_ENTRY && !u->py_late)
		u->step = UW_NATIVE;
	return 0;
}

#endif
