// What the interpreter (workload.c) has from script.c.
#ifndef SCRIPT_H
#define SCRIPT_H

#include "ops.h"

extern __thread struct object *objects; // of this thread, newest first
extern __thread uint64_t round_i;       // of the innermost repeat
extern __thread int expected;           // what calls must return,
extern __thread bool tolerant;          // unless any result will do
extern __thread bool has_context;
extern bool auto_init;

const char *skip(const char *p); // blanks
// word copies the next word and returns what follows it.
const char *word(const char *p, char *out, size_t cap);
uint64_t next_number(const char **p, uint64_t otherwise);

void make_current(void);
void call(const char *api, const char *rest);
void raw(const char *rest);
void row(const char *rest);
void release_all(const char *api);
void print_objects(void);

#endif
