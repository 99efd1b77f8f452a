/* SPDX-License-Identifier: GPL-2.0 */
/* A thread's Python frames. They are read before the stack is unwound: the memo needs all
 * of them, and the unwind inserts them, one run of the interpreter at a time. The fields
 * that are read are those that the unwinder's process_python_frame reads
 * (python_tracer.ebpf.c). */
#ifndef GM_UNWIND_PYTHON_H
#define GM_UNWIND_PYTHON_H

/* Bytes of a frame that are read at most: PyFrameObject of 3.8 is the largest. */
#define UW_PYTHON_FRAME 128
/* The most bytes between the four counts of a code object. */
#define UW_PYTHON_COUNTS 28
/* Bytes of a code object, from the first of the four fields to its line table. */
#define UW_PYTHON_CODE 112
/* uw_content compares this many bytes of a name, a file and a line table, the last ones. */
#define UW_CONTENT 256
/* Bytes that uw_content reads at once: most strings and tables fit, with their head. */
#define UW_CONTENT_NEAR 128
/* Bytes of the head of a bytes object (Include/cpython/bytesobject.h). */
#define UW_BYTES_HEAD 32
/* Times that u->python is filled: 8,192 frames. */
#define UW_PYTHON_FILLS 16
/* Frames that one call of uw_python_walk and one of uw_python_codes read. The verifier
 * checks each turn of their loops, which takes most of the time to load the programs. */
#define UW_PYTHON_STEPS 4
#define UW_PYTHON_CODES 8
/* Modules of PyTorch that a stack has at most: the innermost ones. */
#define UW_MODULES 32

/* uw_python_done continues with the native frames, including those of the interpreter. */
gm_inline void uw_python_done(struct unwind *u)
{
	u->py_done = 1;
	u->record.unwindersDone |= 1 << PROG_UNWIND_PYTHON;
	u->step = u->py_late ? UW_STOP : UW_NATIVE;
}

/* uw_python_late starts to place the Python frames that are left after the native ones.
 * A walk that was cut lacks their runs of the interpreter, and CPython 3.11 lists generators
 * that wait in gen.throw() as running (_gen_throw, Objects/genobject.c). */
gm_inline void uw_python_late(struct unwind *u)
{
	if (u->py_done || (u->py_placed >= u->py_read && !u->py_frame))
		return;
	u->py_late = UW_FRAME_LATE;
	u->step = UW_INTERPRETER;
}

gm_inline u64 uw_least(u64 a, u64 b) { return a < b ? a : b; }
gm_inline u64 uw_most(u64 a, u64 b) { return a > b ? a : b; }

/* uw_small reads a single word, and not its page. */
gm_inline bool uw_small(u64 at, u64 *word)
{
	return !bpf_probe_read_user(word, sizeof(*word), (void *)at);
}

struct task_struct___gm_image {
	u64 self_exec_id;
	u64 start_boottime;
	struct task_struct___gm_image *group_leader;
} GM_CORE;

/* uw_image returns a number for the image that the running process has: execve replaces
 * it by another. */
__attribute__((noinline)) u64 uw_image(void)
{
	struct task_struct___gm_image *task = (void *)bpf_get_current_task_btf();
	return gm_mix(task->group_leader->start_boottime, task->self_exec_id);
}

/* Where the state of a thread has the address of its interpreter, from CPython 3.8 on
 * (struct _ts, Include/cpython/pystate.h). */
#define UW_STATE_INTERPRETER 16

/* Where an interpreter of CPython 3.13 has the number of its next code object:
 * func_state.next_version (struct _is, Include/internal/pycore_interp.h). */
#define UW_COUNTER_313 17000

/* More code objects than a process makes. A greater number is no counter, such as a part of an
 * address where a release has another layout. */
#define UW_MOST_CODES (1 << 24)

/* uw_python_epoch begins an epoch of u->codes, or continues one. */
gm_inline void uw_python_epoch(struct unwind *u, struct unwind_process *process, u64 interpreter)
{
	u64 made = 0, counter = 0;
	if (process && u->py_versioned && !process->uncounted)
		counter = u->py.version == 0x030d ? interpreter + UW_COUNTER_313 : process->counter;
	if (counter && !uw_small(counter, &made))
		made = 0;
	u->made = (u32)made < UW_MOST_CODES ? (u32)made : 0;
	if (u->made)
		u->epoch = gm_mix(gm_mix(gm_mix(uw_image(), u->key.pid), interpreter), u->made) | 1;
	else
		u->epoch = u->epochs += 2;
}

/* uw_python_state finds the thread's innermost Python frame, as the unwinder's
 * get_PyFrame does (python_tracer.ebpf.c). It returns an error or ERR_OK. From CPython
 * 3.13 on a thread-local variable has the thread's state while the thread holds the GIL.
 * Otherwise a slot of pthread has it. The slot's key is made when the interpreter starts,
 * and is remembered in process. */
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
	/* From its interpreter to its frame. */
	u64 last = u->py.PyThreadState_frame - UW_STATE_INTERPRETER;
	if (last >= sizeof(u->frame) || bpf_probe_read_user(u->frame, uw_bytes(last + 8, sizeof(u->frame)), (void *)(state + UW_STATE_INTERPRETER)))
		return ERR_PYTHON_BAD_THREAD_STATE_FRAME_ADDR;
	at = *(u64 *)&u->frame[last & (sizeof(u->frame) - 8)];
	uw_python_epoch(u, process, *(u64 *)u->frame);
	/* A structure on the stack of the thread's innermost run of the interpreter. */
	if (u->py.frame_is_cframe && !uw_word(u, at + u->py.PyCFrame_current_frame, &at))
		return ERR_PYTHON_BAD_CFRAME_CURRENT_FRAME_ADDR;
	u->py_first = at;
	return ERR_OK;
}

/* uw_python_near reads the frames that lie together in memory, from the outermost one of those of the
 * thread's last stack on, up to the innermost one: a run of Python functions has them on a stack of
 * its own. What it does not read, uw_python_walk reads page by page. */
gm_inline void uw_python_near(struct unwind *u)
{
	u64 size = u->py_first + UW_PYTHON_FRAME - u->py_low;
	u->py_near = 0;
	u->py_low_next = ~0ULL;
	if (size - 1 < UW_PYTHON_NEAR &&
	    !bpf_probe_read_user(u->py_frames, uw_bytes(size, UW_PYTHON_NEAR), (void *)u->py_low))
		u->py_near = size;
}

/* uw_python_start goes to the innermost frame. */
gm_inline void uw_python_start(struct unwind *u)
{
	u->py_frame = u->py_first;
	u->py_hash = u->py_read = u->py_placed = u->py_done = u->py_late = 0;
	u->modules = 0;
	if (!u->py_first)
		return;
	u->py_hash = uw_image();
	uw_python_near(u);
}

/* uw_python_variables returns where a frame has its first local variable, in bytes:
 * f_localsplus (struct _frame, Include/cpython/frameobject.h) up to CPython 3.10, localsplus
 * (_PyInterpreterFrame, Include/internal/pycore_frame.h) from 3.11 on. It returns 0 for a
 * version that is not known. */
gm_inline u64 uw_python_variables(u16 version)
{
	switch (version) {
	case 0x0308:
	case 0x0309:
		return 360;
	case 0x030a:
		return 352;
	case 0x030b:
	case 0x030c:
	case 0x030d:
		return 72;
	}
	return 0;
}

/* uw_python_process prepares what the slot has of the process's Python. */
gm_inline void uw_python_process(struct unwind *u)
{
	u32 pid = u->key.pid;
	const PyProcInfo *py = bpf_map_lookup_elem(&py_procs, &pid);
	u->py_unfit = py ? 0 : ERR_PYTHON_NO_PROC_INFO;
	u->module_at = 0;
	if (!py)
		return;
	u->py = *py;
	u->module_at = uw_python_variables(u->py.version);
	/* CPython 3.10 does not say where f_lasti is (struct _frame,
	 * Include/cpython/frameobject.h), and the unwinder assumes 0. */
	if (u->py.version == 0x030a && !u->py.PyFrameObject_f_lasti)
		u->py.PyFrameObject_f_lasti = 96;
	u64 args = u->py.PyCodeObject_co_argcount, kwargs = u->py.PyCodeObject_co_kwonlyargcount;
	u64 flags = u->py.PyCodeObject_co_flags, line = u->py.PyCodeObject_co_firstlineno;
	u64 first = uw_least(uw_least(args, kwargs), uw_least(flags, line));
	u64 last = uw_most(uw_most(args, kwargs), uw_most(flags, line));
	u->code_at = first;
	u->py_versioned = u->py.version >= 0x030c && u->py.version <= 0x030e && line == 68;
	/* The memory after a frame may lie in an untouched page, which cannot be read. */
	u->frame_size = 8 + uw_most(uw_most(u->py.PyFrameObject_f_code, u->py.PyFrameObject_f_back),
				    uw_most(u->py.PyFrameObject_f_lasti, u->py.PyFrameObject_entry_member));
	if (last - first > UW_PYTHON_COUNTS || u->frame_size > UW_PYTHON_FRAME)
		u->py_unfit = ERR_UNREACHABLE;
}

/* uw_python_begin finds the thread's innermost Python frame. If there is none, u->py_error
 * says why. */
gm_inline void uw_python_begin(struct unwind *u, struct unwind_process *process)
{
	u->py_first = 0;
	if (!process || !process->mappings || u->py_of != process->mappings)
		uw_python_process(u);
	u->py_of = process ? process->mappings : 0;
	u->py_error = u->py_unfit;
	u->module_call = process && u->module_at ? process->module_call : 0;
	if (!u->py_error)
		u->py_error = uw_python_state(u, process);
}

/* The most characters of a name and of a file that count. */
#define UW_NAME_CHARACTERS 1024
#define UW_FILE_CHARACTERS 4096

/* The offset of the word that has the number of a code object, co_version, in its upper
 * half, from CPython 3.12 on (Include/cpython/code.h). An interpreter gives each number to one
 * code object, until it has given all 2^32. Then it gives 0. */
#define UW_CODE_VERSION 88

/* Bytes of a string's head: its size and its form (Include/cpython/unicodeobject.h). */
#define UW_STRING_HEAD 40

/* uw_string_at returns the offset of a string's characters, by its state. */
gm_inline u64 uw_string_at(struct unwind *u, u64 state)
{
	bool old = u->py.version < 0x030c, ascii = state & 64;
	return (old ? 48 : 40) + (ascii ? 0 : old ? 24 : 16);
}

/* The offsets of the addresses of the file, the name and the line table in a code object.
 * Their order is co_filename, co_name, from 3.11 on co_qualname, then the line table
 * (Include/code.h, Include/cpython/code.h). */
gm_inline u64 uw_code_names(struct unwind *u)
{
	return u->py.lasti_is_codeunit ? 112 : u->py.version < 0x0308 ? 96 : 104;
}

gm_inline u64 uw_code_lines(struct unwind *u)
{
	return uw_code_names(u) + (u->py.lasti_is_codeunit ? 24 : 16);
}

/* uw_content mixes the content of a string or a bytes object into h: its size, and its
 * last UW_CONTENT bytes. `characters` bounds the characters that count; 0 means bytes. It
 * returns 0 when the object cannot be read. internal/source/unwind/pycode.go computes the
 * same. */
__attribute__((noinline)) u64 uw_content(u32 slot, u64 h, u64 object, u32 characters)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u64 *words = (u64 *)u->text.lines;
	bool near = (object & (UW_PAGE - 1)) <= UW_PAGE - UW_CONTENT_NEAR;
	if (near ? bpf_probe_read_user(words, UW_CONTENT_NEAR, (void *)object) :
		   bpf_probe_read_user(words, UW_STRING_HEAD, (void *)object))
		return 0;
	u64 size = words[2], at = UW_BYTES_HEAD;
	if (characters) {
		size = uw_least(size, characters) * (words[4] >> 2 & 7);
		at = uw_string_at(u, words[4]);
	}
	u64 n = uw_least(size, UW_CONTENT);
	if (!near || at + n > UW_CONTENT_NEAR) {
		if (n && bpf_probe_read_user(words, uw_bytes(n, UW_CONTENT), (void *)(object + at + size - n)))
			return 0;
		at = 0;
	}
	/* What follows the content in its last word does not count. */
	const u64 last = UW_CONTENT / 8 - 1;
	if (n & 7)
		words[(at + n) / 8 & last] &= ~(~0ULL << 8 * (n & 7));
	n = uw_forget(u, n);
	at = uw_forget(u, at);
	for (u32 i = 0; i <= last; i++) {
		if (8 * i >= n)
			break;
		h = gm_mix(h, words[(at / 8 + i) & last]);
	}
	return gm_mix(h, size) ?: 1;
}

/* uw_code_contents returns a hash of what a code object points to, 0 if that cannot be
 * read. The addresses alone are not enough: the contents of an earlier object may have had
 * the same addresses. */
__attribute__((noinline)) u64 uw_code_contents(u32 slot, u64 name, u64 file, u64 lines)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	struct unwind_code *f = &u->files[(file >> 4 ^ file >> 9) & (UW_FILES - 1)];
	if (f->at != file || f->epoch != u->epoch) {
		f->at = file;
		f->epoch = u->epoch;
		f->id = uw_content(slot, 0, file, UW_FILE_CHARACTERS);
	}
	u64 h = f->id ? uw_content(slot, f->id, name, UW_NAME_CHARACTERS) : 0;
	return h ? uw_content(slot, h, lines, 0) : 0;
}

/* uw_uncounted notes that a code object has a number that the counter has not reached. */
gm_inline void uw_uncounted(struct unwind *u)
{
	u32 pid = u->key.pid;
	struct unwind_process *process = bpf_map_lookup_elem(&unwind_processes, &pid);
	if (process)
		process->uncounted = 1;
}

/* uw_code returns a number that distinguishes a code object from others that come to lie
 * at its address, 0 if it cannot be read. */
gm_inline u32 uw_code(struct unwind *u, u64 code)
{
	struct unwind_code *c = &u->codes[(code >> 4 ^ code >> 9) & (UW_CODES - 1)];
	if (c->at == code && c->epoch == u->epoch)
		return c->id;
	c->at = code;
	c->epoch = u->epoch;
	c->id = 0;
	u64 word = 0;
	if (u->py_versioned && uw_small(code + UW_CODE_VERSION, &word) && word >> 32) {
		c->id = word >> 32;
		if (u->made && c->id >= u->made)
			uw_uncounted(u);
		return c->id;
	}
	if (bpf_probe_read_user(u->code, UW_PYTHON_CODE, (void *)(code + u->code_at))) {
		u->unfit = 1;
		return 0;
	}
	u64 first = u->code_at, room = 127;
	u32 args = *(u32 *)&u->code[(u->py.PyCodeObject_co_argcount - first) & room];
	u32 kwargs = *(u32 *)&u->code[(u->py.PyCodeObject_co_kwonlyargcount - first) & room];
	u32 flags = *(u32 *)&u->code[(u->py.PyCodeObject_co_flags - first) & room];
	u32 line = *(u32 *)&u->code[(u->py.PyCodeObject_co_firstlineno - first) & room];
	/* Kept in the map, because all calls together have only 512 bytes of stack. */
	c->id = (args << 25) + (kwargs << 18) + (flags << 10) + line;
	asm volatile("" ::: "memory");
	u64 names = uw_code_names(u), lines = uw_code_lines(u);
	u64 file = *(u64 *)&u->code[(names - first) & room];
	u64 name = *(u64 *)&u->code[(lines - 8 - first) & room];
	u64 h = uw_code_contents(u->slot, name, file, *(u64 *)&u->code[(lines - first) & room]);
	if (!h) {
		c->id = 0;
		u->unfit = 1;
		return 0;
	}
	c->id = (u32)(c->id ^ (u32)(h ^ h >> 32));
	return c->id;
}

/* uw_python_module returns the module of PyTorch that the frame at an address calls: its
 * first variable, which is self. It returns 0 if that cannot be read, or if the stack has
 * enough modules. */
__attribute__((noinline)) u64 uw_python_module(u32 slot, u64 frame)
{
	struct unwind *u = uw_slot(slot);
	u64 module = 0;
	if (!u || u->modules >= UW_MODULES || !uw_word(u, frame + u->module_at, &module))
		return 0;
	module &= (1ULL << UW_FRAME_SHIFT) - 8;
	u->modules += module != 0;
	return module;
}

/* uw_python_walk reads frames into u->python, beginning at u->py_frame, but not their code
 * objects. It returns 0 if there are no more, or no room. */
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
	for (u32 i = 0; i < UW_PYTHON_STEPS && at && n < UW_PYTHON - 1; i++) {
		u8 *frame = (u8 *)u->pages + (at & (UW_PAGES * UW_PAGE - 1));
		u64 in = at - u->sp, low = at - u->py_low;
		bool read = true;
		if (in < u->near && u->near - in >= UW_PYTHON_FRAME) {
			/* From 3.12 on the outermost of a run of the interpreter. */
			frame = (u8 *)u->stack + (in & (UW_NEAR - 1));
		} else if (low < u->py_near && u->py_near - low >= UW_PYTHON_FRAME) {
			frame = (u8 *)u->py_frames + (low & (UW_PYTHON_NEAR - 1));
		} else if ((at & (UW_PAGE - 1)) <= UW_PAGE - UW_PYTHON_FRAME) {
			read = uw_page(u, at);
		} else {
			u64 size = u->frame_size & (UW_PYTHON_FRAME | most);
			frame = u->frame;
			read = !bpf_probe_read_user(frame, size, (void *)at);
		}
		if (!read) {
			u->py_error = ERR_PYTHON_BAD_FRAME_OBJECT_ADDR;
			u->unfit = 1;
			at = 0;
			break;
		}
		/* CPython 3.14 has flags in the lowest bits (Include/internal/pycore_stackref.h),
		 * which are 0 in the address of an object. */
		u64 code = *(u64 *)&frame[f_code] & ~3ULL, last = *(u64 *)&frame[f_lasti], flags = UW_PYTHON_ENTRY;
		u64 here = at;
		if (u->py_first - at < UW_PYTHON_NEAR - UW_PYTHON_FRAME)
			u->py_low_next = uw_least(u->py_low_next, at);
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
		} /* before 3.11, each frame is a run of the interpreter of its own */
		if (code && code == u->module_call) {
			u64 module = uw_python_module(slot, here);
			struct unwind_python *m = &u->python[n & (UW_PYTHON - 1)];
			m->code = module | UW_PYTHON_MODULE;
			m->where = 0;
			n += module != 0;
		}
		struct unwind_python *f = &u->python[n++ & (UW_PYTHON - 1)];
		f->code = code | flags;
		f->where = code ? last << 32 : 0;
	}
	u->py_frame = at;
	u->py_read = n;
	return at && n < UW_PYTHON - 1;
}

/* uw_python_fold mixes a frame into h. Addresses have 48 bits and the multiplier 64, so
 * that two different frames have the same sum only by chance. */
gm_inline u64 uw_python_fold(u64 h, struct unwind_python *f)
{
	return gm_mix(h, f->code + f->where * 0x9e3779b97f4a7c15ULL);
}

/* uw_python_code returns the code object of a frame, or 0 if it has none. */
gm_inline u64 uw_python_code(struct unwind_python *f)
{
	return f->code & UW_PYTHON_MODULE ? 0 : f->code & ~(UW_PYTHON_ENTRY | UW_PYTHON_SHIM);
}

/* uw_python_codes reads the code objects of frames, beginning with the frame `from`, and
 * mixes the frames into u->py_hash. It returns 0 after the last frame. */
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
		u->py_hash = uw_python_fold(u->py_hash, f);
	}
	return 1;
}

/* uw_python_more reads the next frames, as many as u->python has room for. It returns
 * whether there are more. */
gm_inline u32 uw_python_more(struct unwind *u, u32 slot)
{
	u->py_read = u->py_placed = 0;
	for (u32 i = 0; i < UW_PYTHON / UW_PYTHON_STEPS; i++)
		if (!uw_python_walk(slot))
			break;
	for (u32 i = 0; i < UW_PYTHON; i += UW_PYTHON_CODES)
		if (!uw_python_codes(slot, i))
			break;
	return u->py_frame != 0;
}

__attribute__((noinline)) u32 uw_python_fill(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	return u ? uw_python_more(u, slot) : 0;
}

/* uw_python_all reads all frames, up to a limit: the chain in the thread's memory may have
 * no end. The first ones are then in u->python. */
__attribute__((noinline)) u32 uw_python_all(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u || !uw_python_fill(slot))
		return 0;
	u32 more = 1;
	for (u32 i = 0; i < UW_PYTHON_FILLS && more; i++)
		more = uw_python_fill(slot);
	u->unfit |= more;
	u64 hash = u->py_hash;
	u->py_frame = u->py_first;
	u->modules = 0;
	uw_python_fill(slot);
	u->py_hash = hash;
	return 1;
}

/* uw_python records one Python frame, and continues with the native frames after the last
 * frame of a run of the interpreter. */
__attribute__((noinline)) u32 uw_python(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	u32 i = u->py_placed;
	if (i >= u->py_read && u->py_frame) {
		u64 hash = u->py_hash;
		uw_python_more(u, slot); /* inlined: on 5.15 all calls share 512 bytes of stack */
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
	if (!(code & UW_PYTHON_SHIM)) {
		u64 sort = code & UW_PYTHON_MODULE ? UW_FRAME_MODULE : UW_FRAME_PYTHON | u->py_late;
		uw_push(u, sort, code & ~(UW_PYTHON_ENTRY | UW_PYTHON_SHIM | UW_PYTHON_MODULE), f->where);
	}
	u->py_placed = i + 1;
	if (i + 1 >= u->py_read && !u->py_frame && !u->py_error)
		uw_python_done(u);
	else if (code & UW_PYTHON_ENTRY && !u->py_late)
		u->step = UW_NATIVE;
	return 0;
}

#endif
