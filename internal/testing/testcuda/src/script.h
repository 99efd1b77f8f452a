// What the interpreter (workload.c) has from script.c.
#ifndef SCRIPT_H
#define SCRIPT_H

#include "ops.h"

// A script's state, of one thread.
struct script {
	struct object *objects; // newest first
	uint64_t round;         // of the innermost repeat
	int expected;           // what calls must return,
	bool tolerant;          // unless any result will do
	bool has_context;
};
extern __thread struct script script;

const char *skip(const char *p); // blanks
// word copies the next word and returns what follows it.
const char *word(const char *p, char *out, size_t cap);
uint64_t next_number(const char **p, uint64_t otherwise);

// check ends the program unless a call's result is the one expected. It returns
// whether the call succeeded.
bool check(const char *what, int result);
void make_current(void);
void call(const char *api, const char *rest);
void raw(const char *rest);
void row(const char *rest);
void release_all(const char *api);
void print_objects(void);

// requests.c
void words(const char *rest);
void print_words(const char *name);
void request(const char *rest);

// tensor.c
int tensor(uint64_t size);
void tensor_free(uint64_t nth);
void empty_cache(void);
void print_tensors(void);
void print_segments(uint64_t first, uint64_t second);
void pool(uint64_t first, uint64_t second);
void unpool(void);

#endif
