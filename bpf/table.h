/* SPDX-License-Identifier: GPL-2.0 */
/* The table of probed functions as user space fills it in (probes/plan.go), and the gates of
 * their probes. */
#ifndef GM_TABLE_H
#define GM_TABLE_H

/* What the programs do with a call of a function. */
enum gm_class {
	GM_CLASS_OFF,
	GM_CLASS_EMIT,	      /* an event */
	GM_CLASS_AROUND,      /* no event: it is the `outer` of events inside it */
	GM_CLASS_CAUSE,	      /* no event: it is the `outer` of the kernel driver's calls inside it */
	GM_CLASS_CTX_SET,     /* this one and the next four: no event, they change the thread's context */
	GM_CLASS_CTX_PUSH,
	GM_CLASS_CTX_POP,
	GM_CLASS_CTX_DEVICE,  /* *arg0 is the current context's device */
	GM_CLASS_DEVICE_SET,  /* arg0 becomes the current device (runtime) */
	GM_CLASS_ESCAPE,      /* an ioctl: the row is that of the kernel driver's call (gm_escape) */
	GM_CLASS_TENSOR,      /* an event at its entry, the only one with a probe (gm_tensor) */
};

enum gm_row_flags {
	GM_ROW_STACK = 1,      /* take a stack, unless it is shed (enum gm_shed) */
	GM_ROW_ENTRY_TIME = 2, /* ordered at entry */
	GM_ROW_SKIP_NULL = 4,  /* a call with argument 0 == 0 means nothing */
	GM_ROW_LIST = 8,       /* argument 0 is an array of argument 1 elements: an event each */
	GM_ROW_PUSHES = 16,    /* on success v[0] is a context that becomes current */
	GM_ROW_NAME = 32,      /* argument 0 is a string: its first 32 bytes are v[0..3] */
	GM_ROW_EXTENT = 64,    /* a cudaExtent by value becomes arguments 4, 5, 6 */
	GM_ROW_CTX_ARG = 128,  /* argument 1 names the context asked about, 0 the current one */
	GM_ROW_POPS = 256,     /* argument 0 is a context that stops being current */
	GM_ROW_ALLOCATES = 512, /* calls inside it make no event of their own */
	GM_ROW_FREES = 1024,	/* frees inside it make no event of their own */
	GM_ROW_KERNEL = 2048,	/* a call of the kernel driver: `outer` is the function that made it */
	GM_ROW_BACKING = 4096,	/* takes no stack inside a GM_ROW_BACKED function, whose event has that stack */
	GM_ROW_POINTER = 8192,	/* argument 6 becomes the pointer at argument 2 + stride */
	GM_ROW_BACKED = 16384,	/* its allocation lies in memory that the kernel driver hands out inside it */
	GM_ROW_FILE = 32768,	/* v[0] is a file descriptor, which becomes its file (gm_file) */
};

#define GM_LIST_MAX 16

/* Where one value is: the argument itself (size 0), or 4 or 8 bytes of user memory at
 * argument + off, which gm_capture reads when the call returns. Argument 7 is always 0. */
struct gm_capture {
	u8 size;
	u8 arg;
	u16 off;
};

struct gm_row {
	u16 class;
	u16 flags;
	u16 stride; /* of a list's elements; the extent's argument on arm64; see GM_ROW_POINTER, gm_tensor */
	u16 unused;
	struct gm_capture cap[GM_VALUES];
};

/* The rows of one ioctl number of NVIDIA's kernel driver (nv_escape.h). The word at
 * argument 2 + at selects the row with an equal `is`. With `at` 0 it is the first row. */
#define GM_ESCAPE_WAYS 10
struct gm_escape {
	u16 at;
	u16 row[GM_ESCAPE_WAYS];
	u32 is[GM_ESCAPE_WAYS];
};

GM_MAP(rows, GM_MAP_ARRAY, 256, 0, u32, struct gm_row);

GM_MAP(escapes, GM_MAP_ARRAY, 256, 0, u32, struct gm_escape);

/* Each library has a gate: a time (CLOCK_MONOTONIC, ns). Its probes make events only for
 * calls entered at that time or later. So all probes of a library start and stop at one
 * moment, although the kernel attaches and removes them one by one. Gate 0 is always open. */
#define GM_GATES 4096
struct gm_gate {
	u64 since;
	u64 code, code_size; /* where the library's file has its code: offset, bytes (0: not known) */
};
GM_MAP(gates, GM_MAP_ARRAY, GM_GATES, 0, u32, struct gm_gate);

/* An attach cookie holds a row in its low 16 bits, a gate in the 12 from bit 16 on, the offset
 * of the probe in its file in the 35 from bit 28 on, and bit 63 if the function's return has a
 * probe of its own (gm_cookie_apart). */
gm_inline u32 gm_cookie_row(u64 cookie)
{
	return (u16)cookie;
}

gm_inline u32 gm_cookie_gate(u64 cookie)
{
	return cookie >> 16 & (GM_GATES - 1);
}

gm_inline u64 gm_cookie_offset(u64 cookie)
{
	return cookie << 1 >> 29;
}

gm_inline bool gm_cookie_apart(u64 cookie)
{
	return cookie >> 63;
}

#endif
