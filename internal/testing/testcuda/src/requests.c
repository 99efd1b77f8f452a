// Requests to the kernel driver that a workload's script makes itself.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "script.h"

#define MAX_WORDS 532 // of an export's parameters
#define SHOWN 64

struct buffer {
	char name[16];
	uint32_t words[MAX_WORDS];
};
static __thread struct buffer buffers[16];

static struct buffer *buffer(const char *name)
{
	for (struct buffer *b = buffers; b < buffers + 16; b++) {
		if (!*b->name)
			snprintf(b->name, sizeof b->name, "%s", name);
		if (strcmp(b->name, name) == 0)
			return b;
	}
	die("too many buffers, or too long a name: %s", name);
}

// handle returns the kernel driver's name of "client" or "deviceN", or 0.
static uint32_t handle(const char *w)
{
	int device = strcmp(w, "client") == 0 ? -1 : strncmp(w, "device", 6) == 0 ? atoi(w + 6) : -2;
	return device < -1 ? 0 : (uint32_t)((int (*)(int))function_of("testcuda_handle"))(device);
}

// value reads one item of "words", and says whether it has 64 bits.
static uint64_t value(char *w, bool *wide)
{
	char *dot = strchr(w, '.'), *end;
	uint32_t named = handle(w);
	*wide = *w == '&';
	if (*wide)
		return (uint64_t)buffer(w + 1)->words;
	if (named)
		return named;
	if (dot) {
		*dot = 0;
		return buffer(w)->words[strtoul(dot + 1, NULL, 0) % MAX_WORDS];
	}
	uint64_t n = strtoull(w, &end, 0);
	*wide = strcmp(end, ":64") == 0;
	if (strcmp(end, "+i") == 0)
		return n + script.round;
	if (*end && !*wide)
		die("not a word: %s", w);
	return n;
}

void words(const char *rest)
{
	char w[64];
	uint32_t filled[MAX_WORDS] = {0};
	rest = word(rest, w, sizeof w);
	struct buffer *b = buffer(w);
	for (int n = 0; *rest; n++) {
		bool wide;
		rest = word(rest, w, sizeof w);
		if (strncmp(w, "to=", 3) == 0) { // the next word is that of a number
			n = atoi(w + 3) - 1;
			continue;
		}
		uint64_t v = value(w, &wide);
		if (n < 0 || n + wide >= MAX_WORDS)
			die("too many words");
		filled[n] = (uint32_t)v;
		if (wide)
			filled[++n] = (uint32_t)(v >> 32);
	}
	memcpy(b->words, filled, sizeof filled);
}

void print_words(const char *name)
{
	const struct buffer *b = buffer(name);
	for (int i = 0; i < SHOWN; i++)
		printf("%s%u", i ? " " : "", b->words[i]);
	putchar('\n');
}

__attribute__((noinline)) void request(const char *rest)
{
	char w[64], *end;
	uint64_t nr = next_number(&rest, 0), size = next_number(&rest, 0);
	word(rest, w, sizeof w);
	uint64_t addr = strtoull(w, &end, 0);
	void *params = *end ? buffer(w)->words : (void *)addr;
	int (*f)(unsigned long, void *) = (int (*)(unsigned long, void *))function_of("testcuda_ioctl");
	check("ioctl", f(_IOC(_IOC_READ | _IOC_WRITE, 'F', nr, size), params) == 0 ? 0 : errno);
}
