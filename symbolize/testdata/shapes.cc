// Prints "name address" for places in the code, then waits for its input to
// end.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" void *library_return_address();
extern "C" void *library_inner();

static void say(const char *name, const void *addr) {
	printf("%s %lx\n", name, (unsigned long)addr);
}

// The address after the call of here(), in whatever it was inlined into.
extern "C" __attribute__((noinline)) void *here() {
	return __builtin_return_address(0);
}

namespace at::native {
template <typename T> struct Kernel {
	__attribute__((noinline)) void *run(T) { void *p = here(); asm volatile("" ::: "memory"); return p; }
};
__attribute__((noinline)) void *with_lambda(int n) {
	auto f = [n](int) __attribute__((noinline)) { void *p = here(); asm volatile("" :: "r"(n) : "memory"); return p; };
	void *p = f(n);
	asm volatile("" ::: "memory");
	return p;
}
} // namespace at::native

static inline __attribute__((always_inline)) void *inlined_twice(int) {
	void *p = here(); // line of inlined_twice
	asm volatile("" ::: "memory");
	return p;
}
static inline __attribute__((always_inline)) void *inlined_once(int n) {
	return inlined_twice(n); // line of inlined_once
}
__attribute__((noinline)) void *outer(int n) {
	void *p = inlined_once(n); // line of outer
	asm volatile("" ::: "memory");
	return p;
}

extern "C" __attribute__((noinline)) void weak_twin_real() { asm volatile("nop"); }
extern "C" void a_weak_twin() __attribute__((weak, alias("weak_twin_real")));
extern "C" __attribute__((noinline)) void one_body() { asm volatile("nop; nop"); }
extern "C" void __one_body() __attribute__((alias("one_body")));

#if defined(__x86_64__) || defined(__aarch64__)
extern "C" {
static void chosen() { asm volatile("nop"); }
void (*resolve_ifunc())() { return chosen; }
void by_ifunc() __attribute__((ifunc("resolve_ifunc")));
}
#define HAVE_IFUNC 1
#endif

__asm__(".text\n.globl sizeless\n.type sizeless, %function\nsizeless:\nnop\nnop\nnop\nnop\n");

extern "C" char sizeless[];

int main(int argc, char **) {
	say("template", at::native::Kernel<float>().run(1));
	say("lambda", at::native::with_lambda(argc));
	say("inlines", outer(argc));
	say("weak", (void *)weak_twin_real);
	say("twin", (void *)__one_body);
	say("sizeless", sizeless + 2);
#ifdef HAVE_IFUNC
	by_ifunc();
	say("ifunc", (void *)by_ifunc);
#endif
#ifdef LIBRARY
	say("library", library_return_address());
	say("hidden", library_inner());
#endif
	say("main", (void *)main); // the last
	fflush(stdout);
	while (getchar() != EOF) {}
	return 0;
}
