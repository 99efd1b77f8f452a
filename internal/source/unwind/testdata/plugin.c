/* A library that is loaded, and calls the probed function, at one go. */
#include <stddef.h>
int gm_test_alloc(unsigned long *, size_t);
__attribute__((noinline)) int plugin_inner(size_t n)
{
	volatile char room[80];
	unsigned long p;
	room[n] = n;
	return gm_test_alloc(&p, n) + room[n];
}
int plugin_allocate(size_t n)
{
	volatile char room[40];
	room[n] = plugin_inner(n);
	return room[n];
}
