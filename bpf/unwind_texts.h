/* SPDX-License-Identifier: GPL-2.0 */
/* The names and lines of the code objects of a stack. User space reads them from the
 * process's memory, a moment after the call. By then code that exec ran once is gone. So
 * when a stack goes to user space for the first time, a copy is made here: each object is
 * alive, because a frame runs it, and its names and lines never change. */
#ifndef GM_UNWIND_TEXTS_H
#define GM_UNWIND_TEXTS_H

struct unwind_text_key {
	u64 code; /* address */
	u32 pid;
	u32 check; /* uw_code */
};

GM_MAP(unwind_texts, GM_MAP_LRU_HASH, 2048, 0, struct unwind_text_key, struct unwind_text);

/* uw_text_string reads the string at an address. It returns 0 if that is not possible. */
gm_inline bool uw_text_string(struct unwind *u, u8 *to, u64 at, const u32 most)
{
	u64 *head = (u64 *)to;
	if (bpf_probe_read_user(head, UW_STRING_HEAD, (void *)at))
		return false;
	u64 size = uw_least(head[2], most) * (head[4] >> 2 & 7) + uw_string_at(u, head[4]);
	return size && !bpf_probe_read_user(to, uw_bytes(uw_least(size, most), most), (void *)at);
}

/* uw_save_text saves the names of the code object of one Python frame. It returns 0 after the
 * last. */
__attribute__((noinline)) u32 uw_save_text(u32 slot, u32 i)
{
	struct unwind *u = uw_slot(slot);
	if (!u || i >= u->py_read)
		return 0;
	struct unwind_python *f = &u->python[i & (UW_PYTHON - 1)];
	struct unwind_text_key key = { .code = uw_python_code(f), .pid = u->key.pid, .check = f->where };
	struct unwind_text *t = &u->text, *saved;
	const u64 head = 32; /* of a PyBytesObject */
	u64 first = u->code_at, room = 127, word;
	if (!key.code || bpf_probe_read_user(u->code, UW_PYTHON_CODE, (void *)(key.code + first)))
		return 1;
	t->image = uw_image();
	saved = bpf_map_lookup_elem(&unwind_texts, &key);
	if (saved && saved->image == t->image)
		return 1;
	u64 file = uw_code_names(u), lines = uw_code_lines(u), name = lines - 8;
	t->first = *(u32 *)&u->code[(u->py.PyCodeObject_co_firstlineno - first) & room];
	t->traceable = 0;
	if (u->py.lasti_is_codeunit) {
		if (!uw_small(key.code + u->py.PyCodeObject_sizeof - 16, &word))
			return 1;
		t->traceable = word;
	}
	name = *(u64 *)&u->code[(name - first) & room];
	file = *(u64 *)&u->code[(file - first) & room];
	lines = *(u64 *)&u->code[(lines - first) & room];
	if (!uw_text_string(u, t->name, name, UW_TEXT_NAME) || !uw_text_string(u, t->file, file, UW_TEXT_FILE) ||
	    bpf_probe_read_user(t->lines, head, (void *)lines))
		return 1;
	u64 size = uw_least(((u64 *)t->lines)[2], UW_TEXT_LINES) + head;
	if (bpf_probe_read_user(t->lines, uw_bytes(uw_least(size, UW_TEXT_LINES), UW_TEXT_LINES), (void *)lines))
		return 1;
	bpf_map_update_elem(&unwind_texts, &key, t, BPF_ANY);
	return 1;
}

#define UW_SAVE_TEXTS 32 /* of one call of uw_save_some */

__attribute__((noinline)) u32 uw_save_some(u32 slot, u32 from)
{
	for (u32 i = 0; i < UW_SAVE_TEXTS; i++)
		if (!uw_save_text(slot, from + i))
			return 0;
	return 1;
}

/* uw_save_texts saves the names of the Python frames that were read last. */
__attribute__((noinline)) u32 uw_save_texts(u32 slot)
{
	for (u32 i = 0; i < UW_PYTHON; i += UW_SAVE_TEXTS)
		if (!uw_save_some(slot, i))
			break;
	return 0;
}

#endif
