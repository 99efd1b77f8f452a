// What the stand-in driver exports beyond CUDA.
#ifndef TESTCUDA_H
#define TESTCUDA_H

#include <stddef.h>
#include <stdint.h>

// testcuda_stats writes the ledger as one line of JSON, as snprintf would:
// the result is the length needed, without the terminating zero.
size_t testcuda_stats(char *buf, size_t cap);

// testcuda_fail makes the nth call from now of the named API return code, and
// do nothing else. nth 0 means every call, until code 0 is set. Returns 0, or
// -1 for an unknown name, a negative nth or a full table.
int testcuda_fail(const char *api, long nth, int code);

#endif
