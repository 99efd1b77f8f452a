// Words, numbers and calls of a workload's script.
#include "script.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__thread struct script script;

// Text.

const char *skip(const char *p)
{
	return p + strspn(p, " \t");
}

const char *word(const char *p, char *out, size_t cap)
{
	p = skip(p);
	size_t n = strcspn(p, " \t\n");
	snprintf(out, cap, "%.*s", (int)n, p);
	return skip(p + n);
}

static uint64_t number(const char *text, const char **end)
{
	char *after;
	uint64_t n = strtoull(text, &after, 0);
	const char *unit = *after ? strchr("kmg", *after) : NULL;
	if (unit) {
		n <<= 10 * (unit - "kmg" + 1);
		after++;
	}
	*end = after;
	return n;
}

uint64_t next_number(const char **p, uint64_t otherwise)
{
	char w[64];
	const char *end;
	*p = word(*p, w, sizeof w);
	uint64_t n = *w ? number(w, &end) : otherwise;
	if (*w && (end == w || *end))
		die("not a number: %s", w);
	return n;
}

// Calls.

bool check(const char *what, int result)
{
	if (script.tolerant)
		printf("result %d\n", result);
	else if (result != script.expected)
		die("%s: result %d, want %d", what, result, script.expected);
	return result == 0;
}

void make_current(void)
{
	void *ctx;
	SETUP("cuInit", 0);
	SETUP("cuDevicePrimaryCtxRetain", TO(ctx), current_device);
	SETUP("cuCtxSetCurrent", (uint64_t)ctx);
	script.has_context = true;
}

__attribute__((noinline)) static void allocate(const struct op *op, uint64_t base, uint64_t i)
{
	struct object o;
	if (!script.has_context && strncmp(op->name, "cuda", 4) != 0)
		make_current();
	if (!check(op->name, op_call(op, base, i, &o)) || !op->undo)
		return;
	struct object *kept = malloc(sizeof *kept);
	*kept = o;
	kept->next = script.objects;
	script.objects = kept;
}

// release returns whether the object is gone.
__attribute__((noinline)) static bool release(struct object **link, const char *undo)
{
	struct object *o = *link;
	if (!check(undo, op_undo(o, undo)))
		return false;
	*link = o->next;
	free(o);
	return true;
}

static void release_newest(const char *undo)
{
	struct object **link = &script.objects;
	while (*link && !op_undoes((*link)->op, undo))
		link = &(*link)->next;
	if (!*link)
		die("%s: nothing to end", undo);
	release(link, undo);
}

void release_all(const char *api)
{
	for (struct object **link = &script.objects; *link;) {
		const struct op *op = (*link)->op;
		if ((strcmp(api, "all") != 0 && strcmp(api, op->name) != 0) || !release(link, op->undo))
			link = &(*link)->next;
	}
}

static const struct op *find(const char *api)
{
	const struct op *op = op_for(api);
	if (!op)
		die("no such command: %s", api);
	return op;
}

void row(const char *rest)
{
	char api[64];
	rest = word(rest, api, sizeof api);
	uint64_t n = next_number(&rest, 23), base = next_number(&rest, 4096);
	const struct op *op = find(api);
	const char *undo = strcmp(api, op->name) == 0 ? op->undo : api;
	struct object *before = script.objects;
	for (uint64_t i = 0; i < n; i++)
		allocate(op, base, i);
	while (script.objects != before)
		if (!release(&script.objects, undo))
			die("%s: cannot end the row", undo);
}

void raw(const char *rest)
{
	char api[64];
	uint64_t args[8];
	rest = word(rest, api, sizeof api);
	for (int i = 0; i < 8; i++)
		args[i] = next_number(&rest, 0);
	check(api, invoke(function_of(api), args));
}

void call(const char *api, const char *rest)
{
	char w[64];
	const char *end = "";
	const struct op *op = find(api);
	word(rest, w, sizeof w);
	if (strcmp(api, op->name) != 0) {
		release_newest(api);
		return;
	}
	uint64_t base = *w ? number(w, &end) : 4096;
	bool vary = strcmp(end, "+i") == 0;
	if (end == w || (*end && !vary))
		die("not a size: %s", w);
	allocate(op, base, vary ? script.round : 0);
}

void print_objects(void)
{
	const char *comma = "";
	putchar('[');
	for (struct object *o = script.objects; o; o = o->next, comma = ",")
		printf("%s{\"api\":\"%s\",\"addr\":%lu,\"extra\":%lu,\"size\":%zu}", comma, o->op->name, o->addr, o->extra, o->size);
	puts("]");
}
