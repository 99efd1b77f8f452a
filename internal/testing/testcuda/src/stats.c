// The ledger: calls and bytes per API, live memory per kind; and the failures
// that tests inject.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "rm.h"
#include "testcuda.h"

atomic_bool initialized, armed;

_Static_assert(DEVICES == GPUS, "each device is a GPU of the kernel driver's");

static const char *const api_names[NUM_APIS] = {
#define API(name, version) #name,
#include "apis.h"
};
static const char *const kind_names[NUM_KINDS] = {
	"none", "device", "array", "async", "vmm", "managed",
	"host", "host_registered", "imported", "graph", "async_host",
};

struct count {
	_Atomic uint64_t ok, failed, bytes, failed_bytes;
};
struct live {
	_Atomic int64_t objects, bytes;
};
static struct {
	_Alignas(128) struct count apis[NUM_APIS];
	struct live live[NUM_KINDS];
} shards[SHARDS];

#define ADD(counter, n) atomic_fetch_add_explicit(&(counter), (n), memory_order_relaxed)
#define GET(counter) atomic_load_explicit(&(counter), memory_order_relaxed)

unsigned my_shard(void)
{
	static atomic_uint threads;
	static __thread unsigned shard; // plus one
	if (shard == 0)
		shard = atomic_fetch_add(&threads, 1) % SHARDS + 1;
	return shard - 1;
}

CUresult leave(enum api api, CUresult result, uint64_t bytes)
{
	struct count *c = &shards[my_shard()].apis[api];
	if (result == CUDA_SUCCESS) {
		ADD(c->ok, 1);
		if (bytes)
			ADD(c->bytes, bytes);
	} else {
		ADD(c->failed, 1);
		ADD(c->failed_bytes, bytes);
	}
	return result;
}

void count_live(enum kind kind, int64_t objects, int64_t bytes)
{
	struct live *l = &shards[my_shard()].live[kind];
	ADD(l->objects, objects);
	ADD(l->bytes, bytes);
}

void stats_reset(void)
{
	memset(shards, 0, sizeof shards);
}

// Injection.

static struct rule {
	int api; // plus one; 0 is an empty rule
	long nth;
	int code;
} rules[64];
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult enter_armed(enum api api)
{
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&rules_lock);
	for (struct rule *r = rules; r < rules + 64; r++) {
		if (r->api != (int)api + 1)
			continue;
		if (r->nth == 0) {
			result = r->code;
		} else if (--r->nth == 0) {
			result = r->code;
			r->api = 0;
		}
	}
	pthread_mutex_unlock(&rules_lock);
	return result;
}

EXPORT int testcuda_fail(const char *name, long nth, int code)
{
	int api = 0, result = -1;
	while (api < NUM_APIS && strcmp(api_names[api], name) != 0)
		api++;
	if (api == NUM_APIS || nth < 0)
		return -1;
	pthread_mutex_lock(&rules_lock);
	for (struct rule *r = rules; r < rules + 64; r++) {
		if (code == 0 && r->api == api + 1) {
			r->api = 0;
			result = 0;
		} else if (code != 0 && r->api == 0) {
			*r = (struct rule){api + 1, nth, code};
			atomic_store(&armed, true);
			result = 0;
			break;
		}
	}
	pthread_mutex_unlock(&rules_lock);
	return result;
}

// TESTCUDA_FAIL is a list of name:nth:code, separated by commas. A list that
// cannot be understood ends the program: a test must not pass for want of it.
static void fail_from_env(const char *list)
{
	char name[64];
	long nth;
	int code, used;
	while (*list) {
		if (sscanf(list, "%63[^:]:%ld:%d%n", name, &nth, &code, &used) != 3 || testcuda_fail(name, nth, code) != 0) {
			fprintf(stderr, "testcuda: cannot use TESTCUDA_FAIL at %s\n", list);
			_exit(3);
		}
		list += used;
		if (*list == ',')
			list++;
	}
}

static void forked(void)
{
	pthread_mutex_init(&rules_lock, NULL);
	atomic_store(&initialized, false);
	stats_reset();
	blocks_reset();
	kernel_reset();
	backing_reset();
	footprint_reset();
	ctx_reset();
	devices_reset();
	ipc_reset();
#ifndef TESTCUDA_OLD
	vmm_reset();
	pool_reset();
	capture_reset();
#endif
}

__attribute__((constructor)) static void load(void)
{
	const char *list = getenv("TESTCUDA_FAIL");
	if (list)
		fail_from_env(list);
	devices_reset();
	pthread_atfork(NULL, NULL, forked);
}

// JSON.

EXPORT int testcuda_print_stats(void)
{
	const char *comma = "";
	printf("{\"pid\":%d,\"apis\":{", getpid());
	for (int api = 0; api < NUM_APIS; api++) {
		uint64_t ok = 0, failed = 0, bytes = 0, failed_bytes = 0;
		for (int s = 0; s < SHARDS; s++) {
			ok += GET(shards[s].apis[api].ok);
			failed += GET(shards[s].apis[api].failed);
			bytes += GET(shards[s].apis[api].bytes);
			failed_bytes += GET(shards[s].apis[api].failed_bytes);
		}
		if (ok == 0 && failed == 0)
			continue;
		printf("%s\"%s\":{\"ok\":%lu,\"failed\":%lu,\"bytes\":%lu,\"failed_bytes\":%lu}",
		       comma, api_names[api], ok, failed, bytes, failed_bytes);
		comma = ",";
	}
	printf("},\"live\":{");
	comma = "";
	for (int kind = KIND_NONE + 1; kind < NUM_KINDS; kind++) {
		int64_t objects = 0, bytes = 0;
		for (int s = 0; s < SHARDS; s++) {
			objects += GET(shards[s].live[kind].objects);
			bytes += GET(shards[s].live[kind].bytes);
		}
		printf("%s\"%s\":{\"objects\":%ld,\"bytes\":%ld}", comma, kind_names[kind], objects, bytes);
		comma = ",";
	}
	printf("},\"used\":[");
	for (int d = 0; d < DEVICES; d++)
		printf("%s%ld", d ? "," : "", (long)atomic_load(&devices[d].used));
	printf("],\"physical\":[");
	for (int d = 0; d < DEVICES; d++)
		printf("%s%lu", d ? "," : "", testrm_physical(d));
	puts("]}");
	return 0;
}
