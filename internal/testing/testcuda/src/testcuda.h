// What the stand-in driver exports beyond CUDA.
#ifndef TESTCUDA_H
#define TESTCUDA_H

// testcuda_print_stats writes the ledger to stdout as one line of JSON. Returns 0.
int testcuda_print_stats(void);

// testcuda_fail makes the nth call from now of the named API return code, and
// do nothing else. nth 0 means every call, until code 0 is set. Returns 0, or
// -1 for an unknown name, a negative nth or a full table.
int testcuda_fail(const char *api, long nth, int code);

// testcuda_ioctl makes a request on the driver's own descriptor, by the same
// stub as the driver does, and returns what ioctl does.
int testcuda_ioctl(unsigned long request, void *params);

// testcuda_close closes that descriptor: the kernel driver then ends all.
int testcuda_close(void);

// testcuda_handle returns the kernel driver's name of a device, of device -1
// the driver's client, or 0.
unsigned int testcuda_handle(int device);

#endif
