/* SPDX-License-Identifier: GPL-2.0 */
/* The memory of one unwind. It is larger than a program's stack, and larger than a
 * value of task storage on Linux 6.19 and later (8 KiB). So it is a slot of an array,
 * which a thread holds while one return probe runs. A uprobe's program may be
 * preempted: there are more slots than CPUs. */
#ifndef GM_UNWIND_SLOT_H
#define GM_UNWIND_SLOT_H

/* Frames that are recorded of one stack: the innermost ones, and the outermost ones. */
#define UW_LEAF_FRAMES 1024
#define UW_ROOT_FRAMES 512 /* a power of 2 */
/* Words of user memory that a stack of the memo may depend on. */
#define UW_WORDS 1024
/* Words of one node of the memo. */
#define UW_NODE_WORDS 128
/* Python frames that are read before the unwind. */
#define UW_PYTHON 512
#define UW_HIDDEN 8
#define UW_PAGE 4096
/* Bytes of the thread's stack that are read at once at most; a power of 2. */
#define UW_NEAR (8 * UW_PAGE)
/* Bytes of Python frames that are read at once at most; a power of 2. */
#define UW_PYTHON_NEAR (2 * UW_PAGE)
/* Pages of user memory, code objects and names of files that are cached; powers of 2. */
#define UW_PAGES 8
#define UW_CODES 256
#define UW_FILES 16

struct unwind_key {
	u32 pid;
	u32 mappings; /* generation of the process's mappings, which no other process has */
	u64 path; /* of ip, sp and the Python frames, and of all words up to here */
};

/* A run of words of the memo (unwind_memo.h). */
struct unwind_node {
	struct unwind_key key;
	u64 stack; /* the result if all words match; 0: more words are in another node */
	u64 check;
	u64 words;
	u32 off[UW_NODE_WORDS]; /* from sp, bytes */
	u64 val[UW_NODE_WORDS];
};

/* A return address that a pending uretprobe hides. */
struct unwind_hidden {
	u64 at;
	u64 address;
};

/* A frame as user space gets it. The field "what" contains UW_FRAME_ flags and an address.
 * The address of a Python frame is that of its code object. The field "more" then contains
 * uw_code in the lower half and the last instruction in the upper half. */
struct unwind_frame {
	u64 what;
	u64 more;
};

enum uw_frame_flags {
	UW_FRAME_PYTHON = 1,
	UW_FRAME_RETURN = 2,   /* the address is one that a call returns to */
	UW_FRAME_GUESSED = 4,  /* code without a table: its caller was found by the frame pointer */
	UW_FRAME_LATE = 8,     /* Python: the native stack has no run of the interpreter for it */
	UW_FRAME_MODULE = 16,  /* no frame: the module of PyTorch that the next frame calls */
	UW_FRAME_SHIFT = 56,
};

/* A Python frame: its code object with UW_PYTHON_ flags, and the more of struct
 * unwind_frame. Or, before the frame of a call of a module of PyTorch, that module. */
struct unwind_python {
	u64 code;
	u64 where;
};
#define UW_PYTHON_ENTRY (1ULL << 63) /* the outermost of one run of the interpreter */
#define UW_PYTHON_SHIM (1ULL << 62)  /* not a function of the program */
#define UW_PYTHON_MODULE (1ULL << 61) /* no frame: the address is a module's */

/* A code object and its uw_code, or the name of a file and a hash of its content. */
struct unwind_code {
	u64 at;
	u64 epoch; /* in which id is true */
	u64 id;
};

/* The most bytes of each object in unwind_text; powers of 2. internal/source/unwind/texts.go
 * has the same numbers. */
#define UW_TEXT_NAME 256
#define UW_TEXT_FILE 256
#define UW_TEXT_LINES 1024

/* The name, file and line table of a code object (unwind_texts.h), as they lie in
 * memory. Each object has its own size in its head. */
struct unwind_text {
	u64 image;     /* uw_image */
	u32 first;     /* co_firstlineno */
	u32 traceable; /* _co_firsttraceable */
	u8 name[UW_TEXT_NAME];
	u8 file[UW_TEXT_FILE];
	u8 lines[UW_TEXT_LINES];
};

enum uw_step {
	UW_STOP,
	UW_NATIVE,
	UW_INTERPRETER, /* Python frames */
	UW_STRANGER,	/* code without a table */
};

struct unwind {
	PerCPURecord record; /* trace.frame_data holds struct unwind_frame */
	u64 busy; /* 1: a running program holds the slot */
	u32 slot; /* the index of this slot */
	u32 tid;
	u64 user; /* in `users` */
	UnwindState begin; /* record.state at first */
	u64 start, ip, sp; /* the process's start time, and the registers at first */
	struct unwind_key key;
	u32 step;   /* enum uw_step */
	u32 frames; /* unwound, also those of a deep stack that are not recorded */
	u32 error;
	u32 found;  /* words of the memo that matched up to key.path */
	u64 id;	    /* of the stack */
	u64 expect; /* the memo's answer, to be compared with a full unwind */
	/* The memo cannot store this unwind: it read something that is not among the
	 * words, or it could give another result for the same words. */
	u64 unfit;
	u64 seed; /* key.path before the first word */
	u64 hash;
	u64 forgotten; /* by uw_forget */
	u64 reach; /* where uw_match read its last word, bytes from sp */
	u64 fp;	  /* the register */
	u64 fp_off, fp_val, fp_bad; /* where the current frame pointer was loaded from */
	u64 fp_fresh; /* 1: nothing was computed from it yet */
	/* If the stack is a copy (unwind_copy.h): its size (0: it is not a copy), its address
	 * in the process, the address of the copy, and a bit for each missing page. */
	u64 copy_size, copy_of, copy_at, copy_missing;
	u64 trampoline;
	struct unwind_hidden hidden[UW_HIDDEN];

	PyProcInfo py;
	u64 py_first, py_frame; /* the innermost frame, and the next one to read */
	u64 py_hash;		/* of the frames that were read */
	u32 py_read, py_placed; /* of python */
	u32 py_error;
	u32 py_done; /* no Python frame is left to place */
	u32 py_late; /* UW_FRAME_LATE: the native frames have ended */
	u32 py_versioned; /* 1: each code object has a number that no other has (co_version) */
	u32 py_of;    /* the mappings of the process that py and what follows from it are of, 0: none */
	u32 py_unfit; /* why they are of no use */
	u64 py_low, py_near; /* where py_frames are from, and how many bytes it has */
	u64 py_low_next;     /* py_low of the thread's next stack */
	u64 module_call; /* of struct unwind_process */
	u64 module_at;	 /* bytes from the beginning of a frame to its first variable */
	u64 modules;	 /* how many of u->python were read so far */
	/* What `codes` and `files` have of this epoch is true. As long as an interpreter makes no
	 * code object, an address has the same one. Where its counter is not known, each stack has
	 * an epoch of its own. */
	u64 epoch, epochs;
	u64 made;    /* the interpreter's counter of code objects, 0: not known */
	u64 code_at; /* the first byte of a code object that is read */
	u64 frame_size; /* bytes of a frame that are read */
	u64 top;  /* the end of the part of the thread's stack that unwinds read */
	u64 near; /* bytes of the stack from sp on that are in `stack` */
	u64 page_at[UW_PAGES]; /* 1: none */
	struct unwind_code codes[UW_CODES], files[UW_FILES];

	u64 words;
	u32 off[UW_WORDS];
	u64 val[UW_WORDS];
	struct unwind_python python[UW_PYTHON];
	/* In this order: for the verifier, a read that begins in one may end in the next. */
	u64 stack[UW_NEAR / 8];
	u64 py_frames[UW_PYTHON_NEAR / 8];
	u64 pages[UW_PAGES * UW_PAGE / 8];
	u8 frame[256], code[256];
	struct unwind_node node;
	struct unwind_text text;
};

_Static_assert(2 * (UW_LEAF_FRAMES + UW_ROOT_FRAMES) <= sizeof(((Trace *)0)->frame_data) / sizeof(u64),
	       "frames do not fit into the unwinder's record");

/* uw_bytes is n, which is at least 1 and at most `most`, a power of 2. Its instructions
 * show these bounds to verifiers before Linux 6.13. A check in C would not, because the
 * compiler knows the bounds and removes it. */
#define uw_bytes(n, most)                                                                          \
	({                                                                                         \
		u64 n_ = (n);                                                                      \
		asm volatile("%0 += -1\n\t%0 &= %1\n\t%0 += 1" : "+r"(n_) : "i"((most) - 1));     \
		n_;                                                                                \
	})

GM_MAP(unwinds, GM_MAP_ARRAY, 16, 0, u32, struct unwind);

/* The number of slots. User space sets it, and sizes the map to match. */
const volatile u32 cfg_slots = 16;

#define UW_SLOT_TRIES 8
#define UW_NO_SLOT 0xffffffff

gm_inline struct unwind *uw_slot(u32 slot)
{
	return bpf_map_lookup_elem(&unwinds, &slot);
}

/* uw_forget returns x, whose bounds the verifier then does not know. Otherwise it checks what
 * follows once for each way that led there. */
gm_inline u64 uw_forget(struct unwind *u, u64 x)
{
	*(volatile u64 *)&u->forgotten = x;
	return *(volatile u64 *)&u->forgotten;
}

/* uw_acquire reserves a slot for this run of a program, or returns UW_NO_SLOT. */
gm_inline u32 uw_acquire(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	for (u32 i = 0; i < UW_SLOT_TRIES; i++) {
		u32 slot = (cpu + i) % cfg_slots;
		struct unwind *u = uw_slot(slot);
		if (u && !*(volatile u64 *)&u->busy && !__sync_val_compare_and_swap(&u->busy, 0, 1))
			return slot;
	}
	return UW_NO_SLOT;
}

gm_inline void uw_release(struct unwind *u)
{
	__sync_lock_test_and_set(&u->busy, 0);
}

/* uw_page reads the page of user memory with the address at, or returns false. A read
 * costs nearly the same for a word and for a page, so each page is read once for one
 * stack. Its place in u->pages, whose size is a power of 2, follows from the address. */
gm_inline bool uw_page(struct unwind *u, u64 at)
{
	u64 page = at & ~(UW_PAGE - 1ULL), i = at / UW_PAGE & (UW_PAGES - 1);
	if (u->page_at[i] == page)
		return true;
	u->page_at[i] = 1;
	if (bpf_probe_read_user(&u->pages[i * UW_PAGE / 8], UW_PAGE, (void *)page))
		return false;
	u->page_at[i] = page;
	return true;
}

/* uw_near reads the thread's stack from its pointer to the end of the thread's last
 * captured stack: all stacks of a thread end at its first frame. If that memory cannot be
 * read, uw_word reads single pages. */
gm_inline void uw_near(struct unwind *u)
{
	const u64 large = 8 << 20; /* bytes; another stack, such as a signal's */
	u64 size = u->top - u->sp;
	u->near = 0;
	if (size - 1 >= large || u->sp & 7)
		return;
	if (size > UW_NEAR)
		size = UW_NEAR;
	if (bpf_probe_read_user(u->stack, uw_bytes(size, UW_NEAR), (void *)u->sp))
		u->top = 0;
	else
		u->near = size;
}

/* uw_word reads the word at the address at, a multiple of 8. */
gm_inline bool uw_word(struct unwind *u, u64 at, u64 *word)
{
	u64 in = at - u->sp;
	if (in < u->near)
		*word = u->stack[in / 8 & (UW_NEAR / 8 - 1)];
	else if (uw_page(u, at))
		*word = u->pages[at / 8 & (UW_PAGES * UW_PAGE / 8 - 1)];
	else
		return false;
	return true;
}

gm_inline void uw_no_pages(struct unwind *u)
{
	for (u32 i = 0; i < UW_PAGES; i++)
		u->page_at[i] = 1;
}

struct thread_struct___gm {
#if defined(__x86_64__)
	unsigned long fsbase;
#else
	struct {
		unsigned long tp_value;
	} uw;
#endif
} GM_CORE;
struct task_struct___gm_uw {
	struct thread_struct___gm thread;
} GM_CORE;

/* uw_thread_pointer returns the thread's TLS base. */
gm_inline u64 uw_thread_pointer(void)
{
	struct task_struct___gm_uw *task = (void *)bpf_get_current_task_btf();
#if defined(__x86_64__)
	return task->thread.fsbase;
#else
	return task->thread.uw.tp_value;
#endif
}

/* uw_hidden lists the return addresses that pending uretprobes hide, innermost
 * first (kernel/events/uprobes.c, prepare_uretprobe). */
__attribute__((noinline)) u32 uw_hidden(u32 slot)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return 0;
	struct task_struct___gm *task = (void *)bpf_get_current_task_btf();
	u->trampoline = ~0ULL; /* no return address */
	struct uprobe_task___gm *utask = task->utask;
	if (!utask)
		return 0;
	struct return_instance___gm *ri = utask->return_instances;
	if (!ri)
		return 0;
	gm_trampoline(&u->trampoline);
	for (u32 i = 0; i < UW_HIDDEN; i++) {
		u->hidden[i].at = 0;
		if (!ri)
			continue;
		u->hidden[i].at = ri->stack;
		u->hidden[i].address = ri->orig_ret_vaddr;
		ri = ri->next;
	}
	return 0;
}

/* uw_hidden_at returns the original return address for the user address at, which holds
 * val now. A uretprobe on x86 replaces the word at the stack pointer of the function's
 * entry. On arm64 it replaces the link register, which the function then saves below
 * that. */
__attribute__((noinline)) u64 uw_hidden_at(u32 slot, u64 at, u64 val)
{
	struct unwind *u = uw_slot(slot);
	if (!u)
		return val;
	for (u32 i = 0; i < UW_HIDDEN; i++) {
#if defined(__x86_64__)
		if (u->hidden[i].at == at)
			return u->hidden[i].address;
#else
		if (at < u->hidden[i].at)
			return u->hidden[i].address;
#endif
	}
	return val;
}

#endif
