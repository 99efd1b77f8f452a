// Words, numbers and calls of a workload's script.
#include "script.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__thread struct object *objects;
__thread uint64_t round_i;
__thread int expected;
__thread bool tolerant, has_context;
bool auto_init = true;

// Text.

const char *skip(const char *p)
{
	while (*p == ' ' || *p == '\t')
		p++;
	return p;
}

// word copies the next word and returns what follows it.
const char *word(const char *p, char *out, size_t cap)
{
	size_t n = 0;
	for (p = skip(p); *p && !isspace((unsigned char)*p); p++)
		if (n + 1 < cap)
			out[n++] = *p;
	out[n] = 0;
	return skip(p);
}

static uint64_t number(const char *text, const char **end)
{
	char *after;
	uint64_t n = strtoull(text, &after, 0);
	if (after == text)
		die("not a number: %s", text);
	switch (*after) {
	case 'g': n <<= 10; __attribute__((fallthrough));
	case 'm': n <<= 10; __attribute__((fallthrough));
	case 'k': n <<= 10; after++;
	}
	if (end)
		*end = after;
	else if (*after)
		die("not a number: %s", text);
	return n;
}

uint64_t next_number(const char **p, uint64_t otherwise)
{
	char w[64];
	*p = word(*p, w, sizeof w);
	return *w ? number(w, NULL) : otherwise;
}

// Calls.

static bool check(const char *what, int result)
{
	if (tolerant) {
		printf("result %d\n", result);
		fflush(stdout);
	} else if (result != expected) {
		die("%s: result %d, want %d", what, result, expected);
	}
	return result == 0;
}

void make_current(void)
{
	void *ctx;
	int result = ((int (*)(unsigned int))driver("cuInit"))(0);
	if (result == 0)
		result = ((int (*)(void **, int))driver("cuDevicePrimaryCtxRetain"))(&ctx, current_device);
	if (result == 0)
		result = ((int (*)(void *))driver("cuCtxSetCurrent"))(ctx);
	if (result != 0)
		die("cannot set up a context: result %d", result);
	has_context = true;
}

static void prepare(const char *api)
{
	if (auto_init && !has_context && strncmp(api, "cuda", 4) != 0)
		make_current();
}

__attribute__((noinline)) static void allocate(const struct op *op, uint64_t base, uint64_t i)
{
	struct object o;
	prepare(op->name);
	if (!check(op->name, op_call(op, base, i, &o)) || !op->undo)
		return;
	struct object *kept = malloc(sizeof *kept);
	*kept = o;
	kept->next = objects;
	objects = kept;
}

__attribute__((noinline)) static void release(struct object **link, const char *undo)
{
	struct object *o = *link;
	if (!check(undo, op_undo(o, undo)))
		return;
	*link = o->next;
	free(o);
}

static void release_newest(const char *undo)
{
	struct object **link = &objects;
	while (*link && !op_undoes(*link, undo))
		link = &(*link)->next;
	if (!*link)
		die("%s: nothing to end", undo);
	release(link, undo);
}

void release_all(const char *api)
{
	for (struct object **link = &objects; *link;) {
		struct object *o = *link;
		if (strcmp(api, "all") == 0 || strcmp(api, o->op->name) == 0)
			release(link, o->op->undo);
		if (*link == o)
			link = &o->next;
	}
}

void row(const char *rest)
{
	char api[64];
	rest = word(rest, api, sizeof api);
	uint64_t n = next_number(&rest, 23), base = next_number(&rest, 4096);
	const struct op *op = op_named(api);
	const char *undo = op ? op->undo : api;
	if (!op && !(op = op_undone_by(api)))
		die("no such API: %s", api);
	struct object *before = objects;
	for (uint64_t i = 0; i < n; i++)
		allocate(op, base, i);
	while (op->undo && objects != before) {
		struct object *o = objects;
		release(&objects, undo);
		if (objects == o)
			die("%s: cannot end the row", undo);
	}
}

void raw(const char *rest)
{
	char api[64];
	uint64_t v[6];
	rest = word(rest, api, sizeof api);
	for (int i = 0; i < 6; i++)
		v[i] = next_number(&rest, 0);
	int (*f)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) =
		(int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))(strncmp(api, "cuda", 4) == 0 ? runtime(api) : driver(api));
	prepare(api);
	check(api, f(v[0], v[1], v[2], v[3], v[4], v[5]));
}

void call(const char *api, const char *rest)
{
	char w[64];
	const char *end;
	const struct op *op = op_named(api);
	word(rest, w, sizeof w);
	if (op) {
		uint64_t base = *w ? number(w, &end) : 4096;
		bool vary = *w && strcmp(end, "+i") == 0;
		if (*w && *end && !vary)
			die("not a size: %s", w);
		allocate(op, base, vary ? round_i : 0);
	} else if (op_undone_by(api)) {
		release_newest(api);
	} else {
		die("no such command: %s", api);
	}
}

void print_objects(void)
{
	const char *comma = "";
	putchar('[');
	for (struct object *o = objects; o; o = o->next, comma = ",")
		printf("%s{\"api\":\"%s\",\"addr\":%lu,\"extra\":%lu,\"size\":%zu}", comma, o->op->name, o->addr, o->extra, o->size);
	puts("]");
}
