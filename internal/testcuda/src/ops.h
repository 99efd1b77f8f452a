// The API calls that a workload's script can make, one row each.
#ifndef OPS_H
#define OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRANULE (2ull << 20)

// An object is what one successful call left behind.
struct object {
	const struct op *op;
	uint64_t addr;  // pointer or handle
	uint64_t extra; // its row's own
	size_t size;
	struct object *next;
};

struct op {
	const char *name;
	const char *undo; // the call that ends the object; NULL when none is left
	int (*run)(void *function, struct object *o);
	int (*end)(void *function, struct object *o); // NULL: undo takes addr
	void (*teardown)(struct object *o); // after undo: what run set up
	bool granular; // sizes are whole granules of 2 MiB
};

// Each family's rows end with one without a name.
extern const struct op linear_ops[], vmm_ops[], share_ops[], ctx_ops[];

const struct op *op_at(size_t i); // NULL after the last
const struct op *op_named(const char *name);
const struct op *op_undone_by(const char *undo);
// op_call makes the call, with size base + i, or that many granules. It
// returns the call's result.
int op_call(const struct op *op, uint64_t base, uint64_t i, struct object *o);
// op_undo ends the object by its own undo, or by another that also can.
int op_undo(struct object *o, const char *undo);
bool op_undoes(const struct object *o, const char *undo);

// Calls outside the rows. A symbol that is absent ends the program with 3.
void *driver(const char *symbol);
void *runtime(const char *symbol);
void load_driver(void);
void must(const char *what, int result); // die unless it is 0
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

// AS calls a row's function, SETUP another driver function that must succeed.
#define AS(type) ((int (*) type)function)
#define SETUP(symbol, type, ...) must(#symbol, ((int (*) type)driver(#symbol))(__VA_ARGS__))

extern int current_device; // of new VMM memory and pools

#endif
