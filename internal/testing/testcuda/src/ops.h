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

// An argument of a row is a small number, or one of these.
enum arg {
	ADDR = -64, EXTRA, SIZE, // the object's
	TO_ADDR, TO_EXTRA,       // where the call writes them
	SCRATCH,                 // memory that nobody reads
	DEVICE, POOL, CONTEXT,   // the current device, its default pool, the thread's context
	// Pointers to structures; args.c fills them in.
	ARRAY_V1, ARRAY, ARRAY3D_V1, ARRAY3D, SPARSE, MIPMAP, FLOAT4,
	PHYSICAL, MULTICAST, MAP_PART, UNMAP_PART, POOL_PROPS, LOCATION, POINTER_DATA,
	EXTERNAL, VIEW, MIPMAP_VIEW, ALLOC_PARAMS, ALLOC_NODE,
};

struct op {
	const char *name;
	const char *undo; // the call that ends the object; NULL when none is left
	int8_t args[8];
	int8_t end[5]; // the arguments of undo; without any it takes ADDR
	void (*setup)(struct object *o);
	void (*teardown)(struct object *o); // after undo; without one, after the call
	int (*run)(void *function, struct object *o); // instead of args: a structure goes by value
	size_t out;    // where in its structure the call writes addr
	bool granular; // sizes are whole granules of 2 MiB
};
extern const struct op ops[]; // ends with one without a name

// op_for returns the row of a name, or else one whose object it can end.
const struct op *op_for(const char *name);
// op_call makes the call, with size base + i, or that many granules. It
// returns the call's result.
int op_call(const struct op *op, uint64_t base, uint64_t i, struct object *o);
// op_undo ends the object by its own undo, or by another that also can.
int op_undo(struct object *o, const char *undo);
bool op_undoes(const struct op *op, const char *undo);

uint64_t arg_value(int arg, struct object *o);
int call_with(void *function, const int8_t *args, size_t n, struct object *o);
int invoke(void *function, const uint64_t args[8]);

// export_ipc writes the handle of an object's memory to a file. import_ipc makes
// the rows of cuIpcOpenMemHandle open the one in a file, until it is called with NULL.
void export_ipc(const char *path, const struct object *o);
void import_ipc(const char *path);

// A symbol that is absent ends the program with 3.
void *function_of(const char *symbol);
void load_driver(void);
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

// SETUP calls a function that must succeed. TO passes where it writes.
#define SETUP(symbol, ...)                                                            \
	do {                                                                          \
		int result_ = invoke(function_of(symbol), (uint64_t[8]){__VA_ARGS__}); \
		if (result_ != 0)                                                     \
			die("%s: result %d", symbol, result_);                        \
	} while (0)
#define TO(variable) ((uint64_t)&(variable))

extern int current_device; // of new VMM memory and pools

#endif
