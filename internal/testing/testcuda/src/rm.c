// The kernel driver's requests: parameters are read from and written to the
// caller's memory as a kernel does it, so that no address of theirs can harm.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "rm.h"
#include "rm_abi.h"

#define PAGE 4096ull
#define DESCRIPTORS 1024

static atomic_bool ours[DESCRIPTORS]; // descriptors of the control device

static bool ours_is(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS && atomic_load(&ours[fd]);
}

// User memory.

static bool get(void *to, uint64_t from, size_t n)
{
	struct iovec local = {to, n}, remote = {(void *)from, n};
	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n;
}

static bool put(uint64_t to, const void *from, size_t n)
{
	struct iovec local = {(void *)from, n}, remote = {(void *)to, n};
	return process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n;
}

// Allocation.

static uint64_t pages(uint64_t size)
{
	return size > UINT64_MAX - PAGE ? UINT64_MAX : (size + PAGE - 1) & ~(PAGE - 1);
}

static uint32_t alloc_memory(struct rm_new *new, uint64_t params)
{
	struct rm_memory_params p;
	if (!get(&p, params, sizeof p))
		return NV_ERR_INVALID_POINTER;
	if (p.size == 0)
		return NV_ERR_INVALID_ARGUMENT;
	new->size = p.size = pages(p.size);
	uint32_t status = rm_object_new(new);
	if (status == NV_OK && !put(params, &p, sizeof p)) {
		rm_object_free(new->client, new->object);
		status = NV_ERR_INVALID_POINTER;
	}
	return status;
}

static uint32_t alloc_device(struct rm_new *new, uint64_t params)
{
	struct rm_device_params p;
	if (!get(&p, params, sizeof p))
		return NV_ERR_INVALID_POINTER;
	if (p.device >= GPUS)
		return NV_ERR_INVALID_ARGUMENT;
	new->gpu = (int)p.device;
	return rm_object_new(new);
}

static uint32_t alloc(int fd, struct rm_new *new, uint64_t params)
{
	switch (new->class) {
	case CLASS_CLIENT:
	case CLASS_CLIENT_OLD:
	case CLASS_CLIENT_NONPRIV:
		return new->client ? NV_ERR_INVALID_CLIENT : rm_client_new(fd, &new->object);
	case CLASS_DEVICE:
		return alloc_device(new, params);
	case CLASS_MEMORY:
	case CLASS_SYSTEM_MEMORY:
		return alloc_memory(new, params);
	}
	return rm_object_new(new);
}

static uint32_t heap(struct rm_heap *p)
{
	if (p->function == HEAP_FREE)
		return rm_object_free(p->client, p->object);
	if (p->function != HEAP_ALLOC_SIZE)
		return NV_ERR_INVALID_FUNCTION;
	if (p->size == 0)
		return NV_ERR_INVALID_ARGUMENT;
	uint32_t class = p->attr & ATTR_SYSTEM ? CLASS_SYSTEM_MEMORY : CLASS_MEMORY;
	struct rm_new new = {p->client, p->parent, p->object, class, .size = p->size = pages(p->size)};
	uint32_t status = rm_object_new(&new);
	p->object = new.object;
	return status;
}

// Commands.

static uint32_t id_info(uint64_t params, size_t size)
{
	uint32_t p[ID_INFO_SIZE / 4];
	if (!get(p, params, size))
		return NV_ERR_INVALID_POINTER;
	uint32_t gpu = (p[0] - GPU_ID(0)) >> 8;
	if (gpu >= GPUS || p[0] != GPU_ID(gpu))
		return NV_ERR_INVALID_ARGUMENT;
	memset(p + 1, 0, sizeof p - 4);
	p[2] = gpu;
	return put(params, p, size) ? NV_OK : NV_ERR_INVALID_POINTER;
}

static uint32_t attached_ids(uint64_t params)
{
	uint32_t ids[ATTACHED_IDS];
	memset(ids, 0xff, sizeof ids);
	for (int gpu = 0; gpu < GPUS; gpu++)
		ids[gpu] = GPU_ID(gpu);
	return put(params, ids, sizeof ids) ? NV_OK : NV_ERR_INVALID_POINTER;
}

// Of each descriptor, which a child has too: the latest export.
static struct {
	uint32_t client, object;
} exports[DESCRIPTORS];

static uint32_t export(uint32_t client, int fd, uint32_t object)
{
	if (fd < 0 || fd >= DESCRIPTORS || (object && !rm_live(client, object)))
		return NV_ERR_INVALID_ARGUMENT;
	exports[fd].client = client, exports[fd].object = object;
	return NV_OK;
}

static uint32_t import(uint32_t client, int fd, uint32_t parent, uint32_t object)
{
	struct rm_new new = {client, parent, object, CLASS_MEMORY};
	if (fd < 0 || fd >= DESCRIPTORS || !exports[fd].object)
		return NV_ERR_OBJECT_NOT_FOUND;
	return rm_object_share(&new, exports[fd].client, exports[fd].object);
}

static uint32_t files(const struct rm_control *p)
{
	union {
		struct rm_export_one export_one;
		struct rm_import_one import_one;
		struct rm_export export;
		struct rm_import import;
	} u;
	if (!get(&u, p->params, p->params_size))
		return NV_ERR_INVALID_POINTER;
	switch (p->cmd) {
	case CMD_EXPORT_ONE: return export(p->client, u.export_one.fd, u.export_one.object);
	case CMD_IMPORT_ONE: return import(p->client, u.import_one.fd, u.import_one.parent, u.import_one.object);
	case CMD_EXPORT: return export(p->client, u.export.fd, u.export.objects[0]);
	}
	return import(p->client, u.import.fd, u.import.parent, u.import.objects[0]);
}

static uint32_t control(const struct rm_control *p)
{
	static const struct {
		uint32_t cmd, size;
	} sizes[] = {
		{CMD_ATTACHED_IDS, 4 * ATTACHED_IDS}, {CMD_ID_INFO, ID_INFO_SIZE}, {CMD_ID_INFO_V2, ID_INFO_V2_SIZE},
		{CMD_EXPORT_ONE, sizeof(struct rm_export_one)}, {CMD_IMPORT_ONE, sizeof(struct rm_import_one)},
		{CMD_EXPORT, sizeof(struct rm_export)}, {CMD_IMPORT, sizeof(struct rm_import)},
	};
	if (!rm_live(p->client, p->client))
		return NV_ERR_INVALID_CLIENT;
	if (!rm_live(p->client, p->object))
		return NV_ERR_OBJECT_NOT_FOUND;
	for (int i = 0; i < 7; i++) {
		if (sizes[i].cmd != p->cmd)
			continue;
		if (sizes[i].size != p->params_size)
			return NV_ERR_INVALID_ARGUMENT;
		return i == 0 ? attached_ids(p->params) : i < 3 ? id_info(p->params, p->params_size) : files(p);
	}
	return NV_ERR_NOT_SUPPORTED;
}

// Requests.

union request {
	struct rm_free free;
	struct rm_alloc alloc;
	struct rm_alloc_short alloc_short;
	struct rm_alloc_memory alloc_memory;
	struct rm_dup dup;
	struct rm_control control;
	struct rm_heap heap;
	struct rm_xfer xfer;
};

static size_t size_of(unsigned nr, size_t size)
{
	union request *r;
	switch (nr) {
	case RM_FREE: return sizeof r->free;
	case RM_ALLOC: return size == sizeof r->alloc_short ? size : sizeof r->alloc;
	case RM_ALLOC_MEMORY: return sizeof r->alloc_memory;
	case RM_DUP_OBJECT: return sizeof r->dup;
	case RM_CONTROL: return sizeof r->control;
	case RM_VID_HEAP_CONTROL: return sizeof r->heap;
	}
	return 0;
}

static void serve(int fd, unsigned nr, size_t size, union request *r)
{
	struct rm_new new = {r->alloc.client, r->alloc.parent, r->alloc.object, r->alloc.class};
	switch (nr) {
	case RM_FREE:
		r->free.status = rm_object_free(r->free.client, r->free.object);
		break;
	case RM_ALLOC:
		if (size == sizeof r->alloc)
			r->alloc.status = alloc(fd, &new, r->alloc.params);
		else
			r->alloc_short.status = alloc(fd, &new, r->alloc_short.params);
		r->alloc.object = new.object;
		break;
	case RM_ALLOC_MEMORY:
		r->alloc_memory.status = new.class == CLASS_OS_MEMORY ? rm_object_new(&new) : NV_ERR_INVALID_CLASS;
		r->alloc_memory.object = new.object;
		break;
	case RM_DUP_OBJECT:
		r->dup.status = rm_object_share(&new, r->dup.source_client, r->dup.source);
		r->dup.object = new.object;
		break;
	case RM_CONTROL:
		r->control.status = control(&r->control);
		break;
	case RM_VID_HEAP_CONTROL:
		r->heap.status = heap(&r->heap);
		break;
	}
}

static int answer(int fd, unsigned nr, size_t size, uint64_t params)
{
	union request r = {0};
	struct rm_xfer x;
	if (nr == RM_XFER && size == sizeof x) {
		if (!get(&x, params, sizeof x))
			return EFAULT;
		nr = x.nr, size = x.size, params = x.params;
	}
	if (size == 0 || size != size_of(nr, size))
		return EINVAL;
	if (!get(&r, params, size))
		return EFAULT;
	serve(fd, nr, size, &r);
	return put(params, &r, size) ? 0 : EFAULT;
}

// System calls.

RM_EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *params = va_arg(args, void *);
	va_end(args);
	if (_IOC_TYPE(request) != 'F' || !ours_is(fd))
		return (int)syscall(SYS_ioctl, fd, request, params);
	int err = answer(fd, _IOC_NR(request), _IOC_SIZE(request), (uint64_t)params);
	if (err)
		errno = err;
	return err ? -1 : 0;
}

RM_EXPORT int open(const char *path, int flags, ...)
{
	int mode = 0;
	if (flags & O_CREAT) {
		va_list args;
		va_start(args, flags);
		mode = va_arg(args, int);
		va_end(args);
	}
	if (strcmp(path, RM_CONTROL_DEVICE) != 0)
		return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
	int fd = memfd_create("nvidiactl", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
	if (fd >= DESCRIPTORS) {
		syscall(SYS_close, fd);
		errno = EMFILE;
		return -1;
	}
	if (fd >= 0)
		atomic_store(&ours[fd], true);
	return fd;
}

RM_EXPORT int close(int fd)
{
	if (ours_is(fd)) {
		atomic_store(&ours[fd], false);
		rm_descriptor_closed(fd);
	}
	return (int)syscall(SYS_close, fd);
}
