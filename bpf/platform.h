/* SPDX-License-Identifier: GPL-2.0 */
/* The kernel types and helpers that the programs need. Without kernel or libbpf headers they
 * build for any architecture on any machine. If the unwinder's headers come first, they bring
 * the same types, and this file adds the others. Helper numbers: include/uapi/linux/bpf.h,
 * ___BPF_FUNC_MAPPER. */
#ifndef GM_PLATFORM_H
#define GM_PLATFORM_H

#ifndef OPTI_BPFDEFS_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef signed char s8;
typedef signed int s32;
typedef unsigned int u32;
typedef signed long long s64;
typedef unsigned long long u64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

struct task_struct;

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax;
	unsigned long ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 regs[31];
	u64 sp, pc, pstate;
};
#else
#error "unsupported architecture"
#endif

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

enum { BPF_ANY = 0, BPF_NOEXIST = 1 };

static void *(*bpf_map_lookup_elem)(void *map, void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, void *key, void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static void (*bpf_tail_call)(void *ctx, void *map, u32 index) = (void *)12;
static long (*bpf_get_stack)(void *ctx, void *buf, u32 size, u64 flags) = (void *)67;
static long (*bpf_probe_read_user)(void *dst, u32 size, const void *src) = (void *)112;
static long (*bpf_probe_read_kernel)(void *dst, u32 size, const void *src) = (void *)113;
static long (*bpf_ringbuf_output)(void *ringbuf, void *data, u64 size, u64 flags) = (void *)130;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;

#endif /* OPTI_BPFDEFS_H */

static long (*bpf_seq_write)(void *seq, const void *data, u32 len) = (void *)127;
static long (*bpf_probe_read_user_str)(void *dst, u32 size, const void *src) = (void *)114;
static void *(*bpf_ringbuf_reserve)(void *ringbuf, u64 size, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static u64 (*bpf_ringbuf_query)(void *ringbuf, u64 flags) = (void *)134;
static void *(*bpf_task_storage_get)(void *map, struct task_struct *task, void *value,
				     u64 flags) = (void *)156;
static u64 (*bpf_get_func_ip)(void *ctx) = (void *)173;
static u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;

/* A function's six register arguments, its result, and where the thread runs. */
#if defined(__TARGET_ARCH_x86)
#define GM_ARGS(r) (r)->di, (r)->si, (r)->dx, (r)->cx, (r)->r8, (r)->r9
#define GM_RET(r) ((r)->ax)
#define GM_IP(r) ((r)->ip)
#else
#define GM_ARGS(r) (r)->regs[0], (r)->regs[1], (r)->regs[2], (r)->regs[3], (r)->regs[4], (r)->regs[5]
#define GM_RET(r) ((r)->regs[0])
#define GM_IP(r) ((r)->pc)
#endif

enum {
	GM_MAP_HASH = 1,
	GM_MAP_ARRAY = 2,
	GM_MAP_PROG_ARRAY = 3,
	GM_MAP_LRU_HASH = 9,
	GM_MAP_RINGBUF = 27,
	GM_MAP_TASK_STORAGE = 29,
	GM_F_NO_PREALLOC = 1,
	GM_F_USER_STACK = 1 << 8,
	GM_F_MMAPABLE = 1 << 10,
	GM_RB_NO_WAKEUP = 1,
	GM_RB_FORCE_WAKEUP = 2,
	GM_RB_AVAIL_DATA = 0,
	GM_RB_RING_SIZE = 1,
	GM_STORAGE_CREATE = 1,
};

/* A map of the kind GM_MAP_kind. entries and flags are 0 if the kind has none. */
#define GM_MAP(name, kind, entries, flags, K, V)                                                   \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(max_entries, entries);                                                      \
		__uint(map_flags, flags);                                                          \
		__type(key, K);                                                                    \
		__type(value, V);                                                                  \
	} name SEC(".maps")

#define gm_inline static inline __attribute__((always_inline))

/* Kernel structures with only the fields that the programs read. The loader relocates the
 * offsets to the running kernel's BTF (CO-RE). ___gm sets their names apart from those in other
 * headers. */
#define GM_CORE __attribute__((preserve_access_index))

struct ns_common___gm {
	unsigned int inum;
} GM_CORE;
struct pid_namespace___gm {
	struct ns_common___gm ns;
} GM_CORE;
struct upid___gm {
	int nr;
	struct pid_namespace___gm *ns;
} GM_CORE;
struct pid___gm {
	unsigned int level;
	struct upid___gm numbers[1];
} GM_CORE;
struct atomic___gm {
	int counter;
} GM_CORE;
struct signal_struct___gm {
	struct atomic___gm live;
} GM_CORE;
struct xol_area___gm {
	unsigned long vaddr;
} GM_CORE;
struct uprobes_state___gm {
	struct xol_area___gm *xol_area;
} GM_CORE;
struct mm_struct___gm {
	struct uprobes_state___gm uprobes_state;
} GM_CORE;
struct kuid___gm {
	unsigned int val;
} GM_CORE;
struct user_namespace___gm {
	struct user_namespace___gm *parent;
	struct kuid___gm owner;
} GM_CORE;
struct cred___gm {
	struct kuid___gm euid;
	struct user_namespace___gm *user_ns;
} GM_CORE;
struct return_instance___gm {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance___gm *next;
} GM_CORE;
struct uprobe_task___gm {
	struct return_instance___gm *return_instances;
} GM_CORE;
struct fdtable___gm {
	unsigned int max_fds;
	void **fd;
} GM_CORE;
struct files_struct___gm {
	struct fdtable___gm *fdt;
} GM_CORE;
struct task_struct___gm {
	struct cred___gm *cred;
	struct files_struct___gm *files;
	struct mm_struct___gm *mm;
	int pid;
	int tgid;
	u64 start_boottime;
	unsigned long sas_ss_sp, sas_ss_size; /* sigaltstack(2) */
	struct uprobe_task___gm *utask;
	char comm[16];
	struct task_struct___gm *group_leader;
	struct pid___gm *thread_pid;
	struct signal_struct___gm *signal;
} GM_CORE;

/* The argument of a program of iter/task: kernel/bpf/task_iter.c. */
struct bpf_iter_meta___gm {
	void *seq;
};
struct bpf_iter_task___gm {
	struct bpf_iter_meta___gm *meta;
	struct task_struct___gm *task; /* NULL after the last one */
};

/* gm_read reads one kernel field into dst; dst is 0 when it cannot be read. */
#define gm_read(dst, field)                                                                        \
	({                                                                                         \
		dst = 0;                                                                           \
		bpf_probe_read_kernel(&dst, sizeof(dst), &(field));                                \
	})

#endif
