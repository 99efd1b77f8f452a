/* Stands for libcuda: something to probe. */
#include <stddef.h>
int gm_test_alloc(unsigned long *p, size_t n)
{
	*p = n;
	return 0;
}
