// The methods of libc10_cuda's allocator, as a table of virtual functions has them.
#ifndef C10_CUDA_H
#define C10_CUDA_H

// A MempoolId_t; 0.0 is no private pool.
struct pool_id {
	unsigned long long first, second;
};

struct methods {
	void (*begin)(void *allocator, signed char device, struct pool_id id, void *filter);
	void (*end)(void *allocator, signed char device, struct pool_id id);
};

#endif
