// cuGetProcAddress: from a base name and a CUDA version to the exported symbol
// that the version's header means by that name. A caller asks for base names
// only: "cuMemAlloc_v2" is not one.
#include <string.h>

#include "driver.h"

#define API(name, version) extern void name(void);
#include "apis.h"

static const struct {
	const char *name;
	int version;
	void (*symbol)(void);
} apis[] = {
#define API(name, version) {#name, version, name},
#include "apis.h"
};

// means tells whether a symbol is the base name, a version of it, or one of
// those for a thread's own default stream.
static bool means(const char *symbol, const char *base, bool *stream)
{
	size_t n = strlen(base);
	const char *rest = symbol + n;
	if (strchr(base, '_') || strncmp(symbol, base, n) != 0)
		return false;
	if (strncmp(rest, "_v", 2) == 0)
		rest += 3;
	*stream = strcmp(rest, "_ptsz") == 0;
	return *stream || !*rest;
}

CUresult proc_look_up(const char *base, void **out, int version, uint64_t flags, CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	int newest = 0;
	bool stream;
	if (!base || !out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	for (size_t i = 0; i < NUM_APIS; i++) {
		if (!means(apis[i].name, base, &stream) || (stream && !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)))
			continue;
		found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		if (apis[i].version > version || apis[i].version + stream <= newest)
			continue;
		newest = apis[i].version + stream;
		*out = (void *)apis[i].symbol;
	}
	if (status)
		*status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : found;
	return *out || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
