// A library that calls the C library as most do, and exports a function of CUDA's
// runtime, as some of other vendors do.
#include <sys/ioctl.h>
#include <unistd.h>

int caller(int fd)
{
	return ioctl(fd, 0, 0) + close(fd);
}

int cudaMalloc(void **p, unsigned long size)
{
	return p != (void **)size;
}
