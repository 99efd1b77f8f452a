// What sparse arrays need of virtual memory management.
#ifndef VMM_H
#define VMM_H

#include <pthread.h>

#include "driver.h"

extern pthread_mutex_t vmm_lock;

#define LOCKED(expr)                             \
	({                                       \
		pthread_mutex_lock(&vmm_lock);   \
		CUresult locked_ = (expr);       \
		pthread_mutex_unlock(&vmm_lock); \
		locked_;                         \
	})

// Under vmm_lock: one more mapping of a handle's memory, or -1; one less.
int physical_map(CUmemGenericAllocationHandle handle);
void physical_unmap(int physical);

void sparse_reset(void);

#endif
