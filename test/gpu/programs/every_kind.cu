// A C++ program with a static libcudart (nvcc's default): some memory of every
// kind, in functions of its own, and nothing left at the end.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CHECK(call)                                                             \
	do {                                                                    \
		int code = (int)(call);                                         \
		if (code) {                                                     \
			fprintf(stderr, "%s: error %d\n", #call, code);         \
			exit(1);                                                \
		}                                                               \
	} while (0)

static void checkpoint(const std::string &fields)
{
	printf("CHECK {%s}\n", fields.c_str());
	fflush(stdout);
	char line[100];
	if (!fgets(line, sizeof line, stdin))
		exit(1);
}

struct Held {
	void *linear[10], *pitched, *managed, *async, *host;
	size_t pitch;
	cudaArray_t array;
	char *registered;
	CUdeviceptr range;
	CUmemGenericAllocationHandle handle[4];
	size_t granularity;
} held;

__attribute__((noinline)) void take_linear()
{
	for (int i = 0; i < 10; i++)
		CHECK(cudaMalloc(&held.linear[i], (10 << 20) + i));
}
__attribute__((noinline)) void take_pitched() { CHECK(cudaMallocPitch(&held.pitched, &held.pitch, 1000, 1000)); }
__attribute__((noinline)) void take_managed() { CHECK(cudaMallocManaged(&held.managed, 5 << 20)); }
__attribute__((noinline)) void take_async() { CHECK(cudaMallocAsync(&held.async, 7 << 20, 0)); }
__attribute__((noinline)) void take_host()
{
	CHECK(cudaMallocHost(&held.host, 3 << 20));
	held.registered = (char *)aligned_alloc(4096, 1 << 20);
	CHECK(cudaHostRegister(held.registered, 1 << 20, 0));
}
__attribute__((noinline)) void take_array()
{
	cudaChannelFormatDesc d = cudaCreateChannelDesc<float4>();
	CHECK(cudaMallocArray(&held.array, &d, 512, 512));
}
__attribute__((noinline)) void take_vmm()
{
	CUmemAllocationProp p = {};
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CHECK(cuMemGetAllocationGranularity(&held.granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CHECK(cuMemAddressReserve(&held.range, 4 * held.granularity, 0, 0, 0));
	for (int i = 0; i < 4; i++) {
		CHECK(cuMemCreate(&held.handle[i], held.granularity, &p, 0));
		CHECK(cuMemMap(held.range + i * held.granularity, held.granularity, 0, held.handle[i], 0));
		CHECK(cuMemRelease(held.handle[i])); // the mapping keeps it
	}
}
__attribute__((noinline)) int fail()
{
	void *p;
	int code = cudaMalloc(&p, 1ull << 45);
	cudaGetLastError();
	return code;
}

int main()
{
	checkpoint("\"name\": \"ready\"");
	CHECK(cudaFree(0));
	take_linear();
	take_pitched();
	take_managed();
	take_async();
	take_host();
	take_array();
	take_vmm();
	int code = fail();
	CHECK(cudaDeviceSynchronize());
	size_t linear = 0;
	for (int i = 0; i < 10; i++)
		linear += (10 << 20) + i;
	char text[500];
	snprintf(text, sizeof text,
		 "\"name\": \"held\", \"device\": %zu, \"managed\": %d, \"async\": %d, \"host\": %d, "
		 "\"host_registered\": %d, \"array\": %d, \"vmm\": %zu, \"failed\": %d, \"map_info\": %zu",
		 linear + held.pitch * 1000, 5 << 20, 7 << 20, 3 << 20, 1 << 20, 512 * 512 * 16,
		 4 * held.granularity, code, sizeof(CUarrayMapInfo));
	checkpoint(text);
	for (int i = 0; i < 10; i++)
		CHECK(cudaFree(held.linear[i]));
	CHECK(cudaFree(held.pitched));
	CHECK(cudaFree(held.managed));
	CHECK(cudaFreeAsync(held.async, 0));
	CHECK(cudaFreeHost(held.host));
	CHECK(cudaHostUnregister(held.registered));
	CHECK(cudaFreeArray(held.array));
	CHECK(cuMemUnmap(held.range, 4 * held.granularity));
	CHECK(cuMemAddressFree(held.range, 4 * held.granularity));
	CHECK(cudaDeviceSynchronize());
	checkpoint("\"name\": \"freed\"");
	return 7;
}
