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
/* Frames that one call of uw_python_walk reads, and of uw_python_codes tells apart. The
 * verifier walks the loop over them turn by turn, which is most of what it takes to load
 * the programs. */
#define UW_PYTHON_STEPS 16
#define UW_PYTHON_CODES 8

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
	u64 at, state = 0, key, base = uw_thread_pointer();
	if (u->py.tls_offset && !uw_small(base + u->py.tls_offset, &state))
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
		at = base + u->py.tsdInfo.offset;
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
	/* A structure on the stack of the thread's innermost run of the interpreter. */
	if (u->py.frame_is_cframe && !uw_word(u, at + u->py.PyCFrame_current_frame, &at))
		return ERR_PYTHON_BAD_CFRAME_CURRENT_FRAME_ADDR;
	u->py_first = at;
	return ERR_OK;
}

/* uw_python_start goes to the innermost frame, with what tells code objects apart from
 * there on: what they hold, or their cells. */
gm_inline void uw_python_start(struct unwind *u, bool codes)
{
	u->py_frame = u->py_first;
	u->py_codes = codes;
	u->py_hash = codes; /* the two are not to be confused */
	u->py_read = u->py_placed = u->py_done = u->py_late = 0;
	if (codes)
		for (u32 i = 0; i < UW_CODES; i++)
			u->codes[i].at = 0;
}

/* uw_python_begin prepares for a thread's Python frames. A thread without Python has
 * none, and u->py_error says why. */
gm_inline void uw_python_begin(struct unwind *u, struct unwind_process *process)
{
	u32 pid = u->key.pid;
	u->py_first = u->py_error = 0;
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

/* Bytes of a string that say what it is (Include/cpython/unicodeobject.h). */
#define UW_STRING_HEAD 40

/* uw_string_at returns where the characters of a string are, by its state. */
gm_inline u64 uw_string_at(struct unwind *u, u64 state)
{
	bool old = u->py.version < 0x030c, ascii = state & 64;
	return (old ? 48 : 40) + (ascii ? 0 : old ? 24 : 16);
}

/* uw_code_file mixes into h the end of what the string at file says. It returns 0 when
 * that cannot be read. */
gm_inline u64 uw_code_file(struct unwind *u, u64 h, u64 file)
{
	u64 *text = (u64 *)u->code;
	if (bpf_probe_read_user(text, UW_STRING_HEAD, (void *)file))
		return 0;
	u64 size = text[2] < 4096 ? text[2] : 4096, state = text[4];
	size *= state >> 2 & 7; /* bytes of a character */
	u64 at = uw_string_at(u, state);
	u64 n = size < UW_PYTHON_FILE ? size : UW_PYTHON_FILE;
	__builtin_memset(text, 0, UW_PYTHON_FILE);
	if (n && bpf_probe_read_user(text, uw_bytes(n, UW_PYTHON_FILE), (void *)(file + at + size - n)))
		return 0;
	for (u32 i = 0; i < UW_PYTHON_FILE / 8; i++)
		h = gm_mix(h, text[i]);
	return gm_mix(h, size);
}

/* Where a code object has the addresses of its file, its name and its line table, in
 * bytes. co_filename, then co_name, then from 3.11 on co_qualname, then the line table
 * (Include/code.h, Include/cpython/code.h). */
gm_inline u64 uw_code_names(struct unwind *u)
{
	return u->py.lasti_is_codeunit ? 112 : u->py.version < 0x0308 ? 96 : 104;
}

gm_inline u64 uw_code_lines(struct unwind *u)
{
	return uw_code_names(u) + (u->py.lasti_is_codeunit ? 24 : 16);
}

/* uw_code returns what a code object holds that tells it from others that come to lie
 * at its address, 0 if it cannot be read. Code of modules and classes runs once, and all
 * that it points to comes to lie where that of the one before did: there the name of its
 * file tells, or the cell alone. internal/source/unwind/pycode.go computes the same. */
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
	/* Kept in the map and not on the stack, of which all calls together have 512 bytes. */
	c->id = (args << 25) + (kwargs << 18) + (flags << 10) + line;
	asm volatile("" ::: "memory");
	u64 names = uw_code_names(u), lines = uw_code_lines(u);
	u64 file = *(u64 *)&u->code[(names - first) & room];
	u64 h = gm_mix(gm_mix(file, *(u64 *)&u->code[(names + 8 - first) & room]),
		       *(u64 *)&u->code[(lines - first) & room]);
	if (!(flags & UW_PYTHON_OPTIMIZED)) {
		h = uw_code_file(u, h, file);
		if (!h) {
			c->id = 0;
			u->keep_out = 1;
			return 0;
		}
	}
	c->id = (u32)(c->id ^ (u32)(h ^ h >> 32));
	return c->id;
}

/* uw_python_walk reads frames from u->py_frame on into u->python, but not what tells
 * their code objects apart. It returns 0 when there are no more, or no room. */
__attribute__((noinline)) u32 uw_python_walk(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	/* The masks are for the verifier: frame_size was checked. */
	const u64 room = UW_PYTHON_FRAME - 8, most = UW_PYTHON_FRAME - 1;
	u64 f_code = u->py.PyFrameObject_f_code & room, f_back = u->py.PyFrameObject_f_back & room;
	u64 f_lasti = u->py.PyFrameObject_f_lasti & room, none = u->py.noneStructAddr ?: ~0ULL;
	u64 at = u->py_frame, n = u->py_read;
	for (u32 i = 0; i < UW_PYTHON_STEPS && at && n < UW_PYTHON; i++) {
		u8 *frame = (u8 *)u->pages + (at & (UW_PAGES * UW_PAGE - 1));
		u64 in = at - u->key.sp;
		bool read = true;
		if (in < u->near && u->near - in >= UW_PYTHON_FRAME) {
			/* From 3.12 on the outermost of a run of the interpreter. */
			frame = (u8 *)u->stack + (in & (UW_NEAR - 1));
		} else if ((at & (UW_PAGE - 1)) <= UW_PAGE - UW_PYTHON_FRAME) {
			read = uw_page(u, at);
		} else {
			u64 size = u->frame_size & (UW_PYTHON_FRAME | most);
			frame = u->frame;
			read = !bpf_probe_read_user(frame, size, (void *)at);
		}
		if (!read) {
			u->py_error = ERR_PYTHON_BAD_FRAME_OBJECT_ADDR;
			u->keep_out = 1;
			at = 0;
			break;
		}
		/* CPython 3.14 keeps flags in the lowest bits (Include/internal/pycore_stackref.h),
		 * where the address of an object has none. */
		u64 code = *(u64 *)&frame[f_code] & ~3ULL, last = *(u64 *)&frame[f_lasti], flags = UW_PYTHON_ENTRY;
		at = *(u64 *)&frame[f_back];
		if (code == none) {
			flags |= UW_PYTHON_SHIM;
			code = last = 0;
		} else if (u->py.lasti_is_codeunit) {
			/* The address of an instruction of two bytes (3.11). */
			s64 diff = last - code - u->py.PyCodeObject_sizeof;
			last = diff < -2 || diff > 0x10000000 ? -1 : diff >> 1;
			if (frame[u->py.PyFrameObject_entry_member & most] != u->py.PyFrameObject_entry_val)
				flags = 0;
		} /* before, each frame has a run of the interpreter of its own */
		struct unwind_python *f = &u->python[n++ & (UW_PYTHON - 1)];
		f->code = code | flags;
		f->where = code ? last << 32 : 0;
	}
	u->py_frame = at;
	u->py_read = n;
	return at && n < UW_PYTHON;
}

/* uw_python_fold mixes a frame into h. Addresses have 48 bits and the multiplier 64, so
 * two frames give one sum no sooner than by chance. */
gm_inline u64 uw_python_fold(u64 h, struct unwind_python *f)
{
	return gm_mix(h, f->code + f->where * 0x9e3779b97f4a7c15ULL);
}

gm_inline u64 uw_python_code(struct unwind_python *f)
{
	return f->code & ~(UW_PYTHON_ENTRY | UW_PYTHON_SHIM);
}

/* uw_python_codes reads what the code objects of the frames hold, from a frame on. It
 * returns 0 after the last. */
__attribute__((noinline)) u32 uw_python_codes(u32 slot, u32 from)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	for (u32 i = 0; i < UW_PYTHON_CODES; i++) {
		u32 n = from + i;
		if (n >= u->py_read)
			return 0;
		struct unwind_python *f = &u->python[n & (UW_PYTHON - 1)];
		u64 code = uw_python_code(f);
		if (code)
			f->where |= uw_code(u, code);
	}
	return 1;
}

/* uw_python_cells adds the cells of the code objects, which alone tell them apart in a
 * process that is watched: a code object is not freed while a frame runs it. */
__attribute__((noinline)) u32 uw_python_cells(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	struct unwind_cells *c = uw_codes();
	if (!u || !c)
		return 0;
	u64 h = u->py_hash, n = u->py_read;
	u32 pid = u->key.pid;
	for (u32 i = 0; i < UW_PYTHON; i++) {
		if (i >= n)
			break;
		struct unwind_python *f = &u->python[i];
		f->where ^= uw_code_cell(c, pid, uw_python_code(f));
		h = uw_python_fold(h, f);
	}
	u->py_hash = h;
	return 0;
}

/* uw_python_more reads the next frames, as many as u->python holds. It returns
 * whether there are more. */
gm_inline u32 uw_python_more(struct unwind *u, u32 slot)
{
	u->py_read = u->py_placed = 0;
	for (u32 i = 0; i < UW_PYTHON / UW_PYTHON_STEPS; i++)
		if (!uw_python_walk(slot))
			break;
	for (u32 i = 0; i < UW_PYTHON && u->py_codes; i += UW_PYTHON_CODES)
		if (!uw_python_codes(slot, i))
			break;
	uw_python_cells(slot);
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
