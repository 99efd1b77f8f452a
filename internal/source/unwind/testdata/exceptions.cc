// Calls the probed function from an inlined template, from a destructor that
// runs while an exception unwinds, and from a handler.
#include <cstdio>
#include <stdexcept>
#include <vector>
extern "C" int gm_test_alloc(unsigned long *, size_t);
static volatile unsigned long sink;
template <int N> static inline __attribute__((always_inline)) void inlined(size_t n)
{
	unsigned long p;
	sink += gm_test_alloc(&p, n + N);
}
struct Buffer {
	size_t n;
	__attribute__((noinline)) ~Buffer()
	{
		inlined<1>(n);
		sink += 1;
	}
};
__attribute__((noinline)) static void throws(size_t n)
{
	Buffer b{n};
	std::vector<int> v(n);
	if (v.size() + sink + 1)
		throw std::runtime_error("thrown");
}
__attribute__((noinline)) static void catches(size_t n)
{
	try {
		throws(n);
	} catch (const std::exception &e) {
		inlined<2>(n);
		sink += e.what()[0];
	}
}
int main()
{
	char line[8];
	std::puts("ready");
	std::fflush(stdout);
	if (!std::fgets(line, sizeof line, stdin))
		return 1;
	for (int i = 0; i < 10; i++)
		catches(3);
	std::puts("done");
	std::fflush(stdout);
	while (std::fgets(line, sizeof line, stdin))
		;
}
