// Stands in for PyTorch's caching allocator: objects of the same classes, in the same order, from the
// public sources of PyTorch 2.11. It does what its lines of input say, and answers each with the sums.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <vector>

// The members of ska::flat_hash_map and flat_hash_set, and what they do where nothing collides.
template <class V>
struct table {
	struct entry {
		int8_t distance = -1;
		V value;
	};
	entry *entries;
	size_t last = 3;
	int8_t shift = 62, most = 4;
	float load = 0.5f;
	size_t elements = 0;

	table() { entries = fresh(); }
	// The last place ends the table. It has a distance, and words that nobody wrote.
	entry *fresh()
	{
		size_t n = last + most;
		entry *e = new entry[n + 1]();
		e[n].distance = 0;
		memset((void *)&e[n].value, 0x10, sizeof(V));
		return e;
	}
	void insert(V v)
	{
		if (elements * 2 > last)
			grow();
		for (size_t i = 0;; i++)
			if (entries[i].distance < 0) {
				entries[i].distance = 0;
				entries[i].value = v;
				elements++;
				return;
			}
	}
	template <class F> void erase(F is)
	{
		for (size_t i = 0; i < last + most; i++)
			if (entries[i].distance >= 0 && is(entries[i].value)) {
				entries[i].distance = -1;
				elements--;
				return;
			}
	}
	void grow()
	{
		entry *smaller = entries;
		size_t n = last + most;
		last = last * 2 + 1;
		entries = fresh();
		for (size_t i = 0; i < n; i++)
			entries[i] = smaller[i];
		delete[] smaller;
	}
};

namespace c10::cuda::CUDACachingAllocator {
struct CUDAAllocator {
	virtual ~CUDAAllocator() = default;
};
CUDAAllocator *allocator;

namespace Native {
struct Pool;
struct Block {
	int8_t device = 0;
	void *stream = nullptr;
	table<void *> uses;
	size_t size, requested = 0;
	Pool *pool;
	char *ptr;
	bool allocated = false, mapped = true;
	Block *prev = nullptr, *next = nullptr;
	int events = 0;
	int64_t collected = 0;
	std::shared_ptr<int> context, segment_context;
	void *expandable = nullptr;
};
typedef bool (*compare)(const Block *, const Block *);
static bool by_size(const Block *a, const Block *b)
{
	return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
}
struct Pool {
	std::set<Block *, compare> blocks{by_size}, unmapped{by_size};
	bool small;
	struct PrivatePool *owner;
	int64_t calls = 0;
	Pool(bool small, PrivatePool *owner) : small(small), owner(owner) {}
};
struct PrivatePool {
	std::pair<uint64_t, uint64_t> id;
	int uses = 1, mallocs = 0;
	CUDAAllocator *allocator = nullptr;
	Pool large{false, this}, small{true, this};
};
struct Stat {
	int64_t now = 0, peak = 0, added = 0, taken = 0;
	void add(int64_t n)
	{
		now += n;
		if (now > peak)
			peak = now;
		(n > 0 ? added : taken) += n > 0 ? n : -n;
	}
};
struct Stats {
	Stat all[9][3];
	void add(int kind, bool small, int64_t n)
	{
		all[kind][0].add(n);
		all[kind][small ? 1 : 2].add(n);
	}
};
struct DeviceCachingAllocator {
	std::recursive_mutex mutex;
	Stats stats;
	int64_t retries = 0, ooms = 0;
	Pool large{false, nullptr}, small{true, nullptr};
	table<Block *> active;
	table<std::pair<std::pair<uint64_t, uint64_t>, PrivatePool *>> pools;
	size_t limit = 0;
};
struct alignas(64) Mutex {
	std::mutex m;
};
struct NativeCachingAllocator : CUDAAllocator {
	bool enable = true;
	Mutex mutexes[67];
	table<std::pair<void *, Block *>> allocated[67];
	uint64_t times[1001][2] = {{0x18ec6452b707256c, 0xf89a6b376}};
	double scale = 1;
	std::vector<int> annotations;
	std::vector<std::unique_ptr<DeviceCachingAllocator>> devices;
};
} // namespace Native
namespace CudaMallocAsync {
struct CudaMallocAsyncAllocator : CUDAAllocator {};
} // namespace CudaMallocAsync
} // namespace c10::cuda::CUDACachingAllocator

namespace at::cuda {
struct DataPtr {
	void *data, *context;
	void (*deleter)(void *) = nullptr;
	int8_t type = 1, index = 0;
};
struct Workspaces {
	std::map<std::tuple<void *, void *>, std::pair<DataPtr, size_t>> map;
	std::shared_mutex mutex;
};
__attribute__((noinline)) Workspaces &cublas_handle_stream_to_workspace()
{
	static auto &instance = *new Workspaces;
	return instance;
}
} // namespace at::cuda

using namespace c10::cuda::CUDACachingAllocator;
using namespace c10::cuda::CUDACachingAllocator::Native;

static NativeCachingAllocator *native;
static std::map<std::string, Block *> named;
static char *next_address = (char *)0x7f0000000000;

static const size_t MiB = 1 << 20;

static DeviceCachingAllocator *of(int device) { return native->devices[device].get(); }

static Pool *pool_of(int device, bool small, uint64_t private_id)
{
	if (private_id == 0)
		return small ? &of(device)->small : &of(device)->large;
	auto &t = of(device)->pools;
	for (size_t i = 0; i < t.last + t.most; i++)
		if (t.entries[i].distance >= 0 && t.entries[i].value.first.second == private_id)
			return small ? &t.entries[i].value.second->small : &t.entries[i].value.second->large;
	auto p = new PrivatePool;
	p->id = {0, private_id};
	t.insert({p->id, p});
	return small ? &p->small : &p->large;
}

static void allocate(const char *name, int device, size_t asked, uint64_t private_id)
{
	size_t size = (asked + 511) / 512 * 512, segment = size <= MiB ? 2 * MiB : size < 10 * MiB ? 20 * MiB : (size + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
	bool small = size <= MiB;
	Pool *pool = pool_of(device, small, private_id);
	Stats &stats = of(device)->stats;
	Block key, *b;
	key.size = size, key.ptr = nullptr;
	auto it = pool->blocks.lower_bound(&key);
	if (it != pool->blocks.end()) {
		b = *it;
		pool->blocks.erase(it);
	} else {
		b = new Block;
		b->device = device, b->pool = pool, b->size = segment, b->ptr = next_address;
		next_address += segment + 2 * MiB;
		stats.add(1, small, 1);
		stats.add(5, small, segment);
	}
	if (b->size - size >= (small ? 512 : MiB + 1)) {
		Block *rest = new Block;
		rest->device = device, rest->pool = pool, rest->size = b->size - size, rest->ptr = b->ptr + size, rest->prev = b, rest->next = b->next;
		if (b->next)
			b->next->prev = rest;
		b->next = rest;
		b->size = size;
		pool->blocks.insert(rest);
	}
	b->allocated = true, b->requested = asked, b->stream = (void *)0x1234;
	native->allocated[(uintptr_t)b->ptr / 512 % 67].insert({b->ptr, b});
	of(device)->active.insert(b);
	named[name] = b;
	stats.add(0, small, 1), stats.add(2, small, 1);
	stats.add(4, small, b->size), stats.add(6, small, b->size), stats.add(8, small, asked);
}

static void merge(Block *to, Block *gone)
{
	if (!gone || gone->allocated || gone->events || !gone->mapped)
		return;
	to->pool->blocks.erase(gone);
	if (to->prev == gone) {
		to->ptr = gone->ptr, to->prev = gone->prev;
		if (to->prev)
			to->prev->next = to;
	} else {
		to->next = gone->next;
		if (to->next)
			to->next->prev = to;
	}
	to->size += gone->size;
	delete gone;
}

static void release(const char *name, bool waits)
{
	Block *b = named[name];
	Stats &stats = of(b->device)->stats;
	bool small = b->pool->small;
	b->allocated = false;
	native->allocated[(uintptr_t)b->ptr / 512 % 67].erase([&](auto &v) { return v.second == b; });
	stats.add(0, small, -1), stats.add(4, small, -(int64_t)b->size), stats.add(8, small, -(int64_t)b->requested);
	if (waits) {
		b->events = 1;
		return;
	}
	of(b->device)->active.erase([&](Block *v) { return v == b; });
	stats.add(2, small, -1), stats.add(6, small, -(int64_t)b->size);
	merge(b, b->prev);
	merge(b, b->next);
	b->pool->blocks.insert(b);
	named.erase(name);
}

#ifdef LIBRARY // that a Python program loads
extern "C" void start()
{
	allocator = native = new NativeCachingAllocator;
	native->devices.emplace_back(new DeviceCachingAllocator);
}
extern "C" char *give(size_t size)
{
	allocate("", 0, size, 0);
	return named[""]->ptr;
}
#endif

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "async")) {
		allocator = new c10::cuda::CUDACachingAllocator::CudaMallocAsync::CudaMallocAsyncAllocator;
	} else if (argc == 1) {
		allocator = native = new NativeCachingAllocator;
		for (int i = 0; i < 2; i++)
			native->devices.emplace_back(new DeviceCachingAllocator);
	}
	char line[256], command[16], name[64];
	printf("%p %p\n", (void *)&allocator, (void *)at::cuda::cublas_handle_stream_to_workspace);
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		unsigned long long size = 0, device = 0, id = 0, churn = 0;
		if (sscanf(line, "%15s %63s %llu %llu %llu", command, name, &size, &device, &id) < 2)
			return 1;
		if (!strcmp(command, "new"))
			allocate(name, device, size, id);
		else if (!strcmp(command, "free"))
			release(name, false);
		else if (!strcmp(command, "wait"))
			release(name, true);
		else if (!strcmp(command, "unmap"))
			named[name]->next->mapped = false;
		else if (!strcmp(command, "ghosts")) // what no block is, listed as some
			for (unsigned long long i = 0; i < size; i++)
				native->allocated[i % 67].insert({(void *)(0x7e0000000000 + 512 * i), (Block *)calloc(1, sizeof(Block))});
		else if (!strcmp(command, "workspace")) {
			void *at = size ? (void *)size : named[name]->ptr;
			at::cuda::cublas_handle_stream_to_workspace().map[{(void *)0x1000, (void *)at}] = {{at, at}, 1};
		} else if (!strcmp(command, "forge"))
			named[name]->size += 512;
		else if (!strcmp(command, "many"))
			for (unsigned long long i = 0; i < size; i++)
				allocate((name + std::to_string(i)).c_str(), device, 700 * (1 + i % 900), 0);
		else if (!strcmp(command, "churn")) {
			printf("churns\n");
			fflush(stdout);
			for (;; churn++) {
				allocate("churn", 0, 512 * (1 + churn % 5000), 0);
				release("churn", false);
			}
		}
		for (int d = 0; native && d < 2; d++) {
			Stats &s = of(d)->stats;
			printf("%d %lld %lld %lld %lld %lld %lld%s", d, (long long)s.all[0][0].now, (long long)s.all[1][0].now, (long long)s.all[4][0].now,
			       (long long)s.all[5][0].now, (long long)s.all[6][0].now, (long long)s.all[8][0].now, d ? "\n" : " ");
		}
		fflush(stdout);
	}
}
