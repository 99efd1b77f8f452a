// Requests to the kernel driver. As NVIDIA's libcuda does, this one chooses the
// handles of its objects, and those of ended ones are the next to be used.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "rm_abi.h"
#include "testcuda.h"

#define FIRST_HANDLE 0x5c000001u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int control_device = -1;
static uint32_t client;
static uint32_t device_object[DEVICES];
static uint32_t next_handle = FIRST_HANDLE, *ended;
static size_t num_ended, cap_ended;

void kernel_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	control_device = -1;
	client = 0;
	next_handle = FIRST_HANDLE;
	num_ended = 0;
}

EXPORT int testcuda_ioctl(unsigned long request, void *params)
{
	int result;
	do
		result = ioctl(control_device, request, params);
	while (result < 0 && (errno == EINTR || errno == EAGAIN));
	return result;
}

EXPORT int testcuda_close(void)
{
	int fd = control_device;
	control_device = -1;
	return close(fd);
}

EXPORT uint32_t testcuda_handle(int device)
{
	return device < 0 ? client : device < DEVICES ? device_object[device] : 0;
}

static uint32_t new_handle(void)
{
	pthread_mutex_lock(&lock);
	uint32_t handle = num_ended ? ended[--num_ended] : next_handle++;
	pthread_mutex_unlock(&lock);
	return handle;
}

static void end_handle(uint32_t handle)
{
	pthread_mutex_lock(&lock);
	if (num_ended == cap_ended) {
		size_t cap = cap_ended ? cap_ended * 2 : 64;
		uint32_t *grown = realloc(ended, cap * sizeof *grown);
		if (grown) {
			ended = grown;
			cap_ended = cap;
		}
	}
	if (num_ended < cap_ended)
		ended[num_ended++] = handle;
	pthread_mutex_unlock(&lock);
}

static uint32_t alloc(uint32_t parent, uint32_t object, uint32_t class, void *params)
{
	struct rm_alloc p = {.client = client, .parent = parent, .object = object, .class = class, .params = (uint64_t)params, .status = ~0u};
	testcuda_ioctl(RM_REQUEST(RM_ALLOC, p), &p);
	return p.status == NV_OK ? p.object : 0;
}

// named_or_ended gives the name of an object that was not made back.
static uint32_t named_or_ended(uint32_t handle, bool made)
{
	if (!made)
		end_handle(handle);
	return made ? handle : 0;
}

static uint32_t alloc_new(uint32_t parent, uint32_t class, void *params)
{
	uint32_t handle = new_handle();
	return named_or_ended(handle, alloc(parent, handle, class, params));
}

static void free_object(uint32_t parent, uint32_t object)
{
	struct rm_free p = {client, parent, object, 0};
	testcuda_ioctl(RM_REQUEST(RM_FREE, p), &p);
}

static void control(uint32_t cmd, void *params, uint32_t size)
{
	struct rm_control p = {.client = client, .object = client, .cmd = cmd, .params = (uint64_t)params, .params_size = size};
	testcuda_ioctl(RM_REQUEST(RM_CONTROL, p), &p);
}

// The first client is only tried.
static uint32_t new_client(void)
{
	client = 0;
	return client = alloc(0, 0, CLASS_CLIENT, NULL);
}

static void open_device(int device, uint32_t gpu_id)
{
	uint32_t v2[ID_INFO_V2_SIZE / 4] = {gpu_id}, v1[ID_INFO_SIZE / 4] = {gpu_id};
	control(CMD_ID_INFO_V2, v2, sizeof v2);
	control(CMD_ID_INFO, v1, sizeof v1);
	struct rm_device_params p = {.device = v2[2], .share = client};
	device_object[device] = alloc_new(client, CLASS_DEVICE, &p);
	uint32_t subdevice = kernel_object(device, 0, CLASS_SUBDEVICE);
	const char *instance = getenv("TESTCUDA_INSTANCE");
	if (instance) {
		uint32_t id = (uint32_t)atoi(instance);
		alloc_new(subdevice, CLASS_GPU_INSTANCE, &id);
	}
}

void kernel_open(void)
{
	static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
	uint32_t ids[ATTACHED_IDS] = {0};
	pthread_mutex_lock(&opening);
	if (!client) {
		control_device = open(RM_CONTROL_DEVICE, O_RDWR | O_CLOEXEC);
		free_object(client, new_client());
		kernel_object(0, new_client(), CLASS_CONFIDENTIAL);
		control(CMD_ATTACHED_IDS, ids, sizeof ids);
		for (int d = 0; d < DEVICES; d++)
			open_device(d, ids[d]);
	}
	pthread_mutex_unlock(&opening);
}

uint32_t kernel_client(void)
{
	return client;
}

uint32_t kernel_object(int device, uint32_t parent, uint32_t class)
{
	return alloc_new(parent ? parent : device_object[device], class, NULL);
}

// The types, flags and attributes are those that NVIDIA's libcuda gives.
static uint32_t memory(int device, uint32_t object, uint32_t class, uint64_t size)
{
	bool local = class == CLASS_MEMORY;
	struct rm_memory_params p = {
		.owner = client, .flags = local ? 0x1c101 : 0xc001, .attr = local ? 0x11800000 : 0x2a800000,
		.attr2 = local ? 0x100005 : 9, .size = size, .alignment = local ? GRANULE : 4096,
	};
	return alloc(device_object[device], object, class, &p);
}

uint32_t kernel_memory(int device, uint64_t size)
{
	uint32_t handle = new_handle();
	return named_or_ended(handle, memory(device, handle, CLASS_MEMORY, size));
}

uint32_t kernel_system_memory(int device, uint64_t size)
{
	uint32_t handle = new_handle();
	return named_or_ended(handle, memory(device, handle, CLASS_SYSTEM_MEMORY, size));
}

uint32_t kernel_host(int device, uint64_t addr, uint64_t size)
{
	struct rm_alloc_memory p = {
		.client = client, .parent = device_object[device], .object = new_handle(), .class = CLASS_OS_MEMORY,
		.flags = 0x40001010, .memory = addr, .limit = size - 1, .status = ~0u, .fd = -1,
	};
	testcuda_ioctl(RM_REQUEST(RM_ALLOC_MEMORY, p), &p);
	return named_or_ended(p.object, p.status == NV_OK);
}

uint32_t kernel_share(int device, uint32_t source_client, uint32_t source)
{
	struct rm_dup p = {client, device_object[device], new_handle(), source_client, source, 0, ~0u};
	testcuda_ioctl(RM_REQUEST(RM_DUP_OBJECT, p), &p);
	return named_or_ended(p.object, p.status == NV_OK);
}

void kernel_free(int device, uint32_t object)
{
	free_object(device_object[device], object);
	end_handle(object);
}

bool kernel_resize(int device, uint32_t object, uint64_t before, uint64_t size)
{
	free_object(device_object[device], object);
	if (memory(device, object, CLASS_MEMORY, size))
		return true;
	memory(device, object, CLASS_MEMORY, before);
	return false;
}
