// The part of the NVIDIA kernel driver's protocol that the stand-in speaks, as
// open-gpu-kernel-modules has it: nvos.h, nv_escape.h, ctrl0000gpu.h and
// nvstatuscodes.h. Handles are 32 bits: a client's, and within it an object's.
#ifndef RM_ABI_H
#define RM_ABI_H

#include <stdint.h>
#include <sys/ioctl.h>

#define RM_CONTROL_DEVICE "/dev/nvidiactl"
#define RM_REQUEST(nr, type) _IOWR('F', nr, type)

enum {
	RM_ALLOC_MEMORY = 0x27, RM_FREE = 0x29, RM_CONTROL = 0x2a, RM_ALLOC = 0x2b,
	RM_DUP_OBJECT = 0x34, RM_VID_HEAP_CONTROL = 0x4a, RM_XFER = 211,
};

// Classes of objects.
enum {
	CLASS_CLIENT = 0x41, CLASS_CLIENT_OLD = 0x0, CLASS_CLIENT_NONPRIV = 0x1,
	CLASS_DEVICE = 0x80, CLASS_SUBDEVICE = 0x2080, CLASS_DEBUGGER = 0x83de,
	CLASS_GPU_INSTANCE = 0xc637, CLASS_CONFIDENTIAL = 0xcb33,
	CLASS_MEMORY = 0x40, CLASS_SYSTEM_MEMORY = 0x3e, CLASS_OS_MEMORY = 0x71,
	CLASS_GROUP = 0xa06c, CLASS_SHARE = 0x9067, CLASS_CHANNEL = 0xc86f,
	CLASS_COMPUTE = 0xcbc0, CLASS_COPY = 0xc8b5, CLASS_EVENT = 0x79,
};

enum {
	NV_OK = 0, NV_ERR_INSERT_DUPLICATE_NAME = 0x19, NV_ERR_INVALID_ARGUMENT = 0x1f,
	NV_ERR_INVALID_CLASS = 0x22, NV_ERR_INVALID_CLIENT = 0x23, NV_ERR_INVALID_FUNCTION = 0x2a,
	NV_ERR_INVALID_OBJECT_PARENT = 0x36, NV_ERR_INVALID_POINTER = 0x3d, NV_ERR_NO_MEMORY = 0x51,
	NV_ERR_NOT_SUPPORTED = 0x56, NV_ERR_OBJECT_NOT_FOUND = 0x57,
};

struct rm_free {
	uint32_t client, parent, object, status;
};

struct rm_alloc {
	uint32_t client, parent, object, class;
	uint64_t params, rights;
	uint32_t params_size, flags, status, pad;
};

struct rm_alloc_short {
	uint32_t client, parent, object, class;
	uint64_t params;
	uint32_t params_size, status;
};

struct rm_alloc_memory {
	uint32_t client, parent, object, class, flags, pad;
	uint64_t memory, limit;
	uint32_t status, pad2;
	int32_t fd, pad3;
};

struct rm_dup {
	uint32_t client, parent, object, source_client, source, flags, status;
};
_Static_assert(sizeof(struct rm_alloc) == 48 && sizeof(struct rm_alloc_memory) == 56 && sizeof(struct rm_dup) == 28, "nvos.h");

struct rm_control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t params_size, status;
};

// Parameters of a class: NV_MEMORY_ALLOCATION_PARAMS, NV0080_ALLOC_PARAMETERS.
struct rm_memory_params {
	uint32_t owner, type, flags, width, height;
	int32_t pitch;
	uint32_t attr, attr2, format, coverage, zcull, pad;
	uint64_t low, high, size, alignment, offset, limit, address;
	uint32_t words[6];
};
_Static_assert(sizeof(struct rm_memory_params) == 128, "NV_MEMORY_ALLOCATION_PARAMS");

struct rm_device_params {
	uint32_t device, share, target, target_device, flags, pad;
	uint64_t va_size, va_start, va_limit;
	uint32_t va_mode, pad2;
};

// Commands of RM_CONTROL on a client, and what they answer.
enum { CMD_ATTACHED_IDS = 0x201, CMD_ID_INFO = 0x202, CMD_ID_INFO_V2 = 0x205 };
#define ATTACHED_IDS 32
#define ID_INFO_SIZE 40
#define ID_INFO_V2_SIZE 32

// Of memory in a file (ctrl0000unix.h): an object, or several from a place on, of which this
// takes the first.
enum { CMD_EXPORT_ONE = 0x3d05, CMD_IMPORT_ONE = 0x3d06, CMD_EXPORT = 0x3d0b, CMD_IMPORT = 0x3d0c };
struct rm_export_one {
	uint32_t type, device, parent, object;
	int32_t fd;
	uint32_t flags;
};
struct rm_import_one {
	int32_t fd;
	uint32_t type, device, parent, object;
};
struct rm_export {
	int32_t fd;
	uint32_t device;
	uint16_t max;
	uint8_t metadata[64];
	uint32_t objects[512];
	uint16_t count, index;
};
struct rm_import {
	int32_t fd;
	uint32_t parent, objects[128];
	uint8_t types[128];
	uint16_t count, index;
};
_Static_assert(sizeof(struct rm_export) == 2128 && sizeof(struct rm_import) == 652, "ctrl0000unix.h");

// RM_VID_HEAP_CONTROL: bit 25 of attr says that the memory is the machine's.
enum { HEAP_ALLOC_SIZE = 2, HEAP_FREE = 3, ATTR_SYSTEM = 1 << 25 };
struct rm_heap {
	uint32_t client, parent, function, vaspace, number, status;
	uint64_t total, free;
	uint32_t owner, object, type, flags, attr, words[7];
	uint64_t size;
	uint32_t rest[22];
};
_Static_assert(sizeof(struct rm_heap) == 184, "NVOS32_PARAMETERS");

struct rm_xfer {
	uint32_t nr, size;
	uint64_t params;
};

#endif
