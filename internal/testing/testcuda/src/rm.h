// What the stand-in kernel driver, libtestrm.so, is made of, and what it
// exports beside open, ioctl and close.
#ifndef RM_H
#define RM_H

#include <stdbool.h>
#include <stdint.h>

#define GPUS 2
#define GPU_ID(gpu) (0x0a00u + ((uint32_t)(gpu) << 8)) // 0000:0a:00.0, 0000:0b:00.0
#define GPU_BYTES (1ull << 40) // unless TESTCUDA_PHYSICAL says another size
#define RM_EXPORT __attribute__((visibility("default")))

// testrm_physical returns what NVML would say that this process uses on a GPU,
// in bytes: its memory objects, each once however many names it has.
uint64_t testrm_physical(int gpu);

// rm_objects.c: the tree. A client's own name is its handle twice. Each
// function but rm_live returns a status; all lock.

struct rm_new {
	uint32_t client, parent, object, class; // object 0: one is chosen, and written back
	int gpu;       // of a device
	uint64_t size; // of memory, bytes
};
uint32_t rm_client_new(int fd, uint32_t *client);
uint32_t rm_object_new(struct rm_new *new);
uint32_t rm_object_share(struct rm_new *new, uint32_t client, uint32_t object);
uint32_t rm_object_free(uint32_t client, uint32_t object);
bool rm_live(uint32_t client, uint32_t object);
void rm_descriptor_closed(int fd);

#endif
