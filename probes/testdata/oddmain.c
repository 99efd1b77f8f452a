// Calls of the odd libcuda, by name and number from stdin: "nested 23".
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

extern jmp_buf away;
extern void (*inside)(void);
int cuMemAlloc_v2(unsigned long *, size_t), cuMemFree_v2(unsigned long);
int cuMemAllocHost_v2(unsigned long *, size_t), cuMemFreeHost(unsigned long);
int cuMemHostAlloc(unsigned long *, size_t, unsigned);
int cuMemAllocManaged(unsigned long *, size_t, unsigned), cuModuleLoadData(void **, const void *);
int cuMemCreate(unsigned long *, size_t, void *, unsigned long);
int cuMemPoolTrimTo(void *, size_t);
int cuMemAllocPitch_v2(unsigned long *, size_t *, size_t, size_t, unsigned);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long, void *);

static char prop[64];

__attribute__((noinline)) static void deeper(int depth, void (*f)(void))
{
	volatile char room[4096];
	room[0] = 0;
	if (depth > 0)
		deeper(depth - 1, f);
	else
		f();
	room[1] = 0;
}

static void jump(void)
{
	unsigned long p;
	cuMemAlloc_v2(&p, 13);
}

// Frames that are used to the last word take the place of those that a jump
// left, and the call comes from below them.
__attribute__((noinline)) static void over(unsigned long size)
{
	unsigned long p;
	volatile char room[4096];
	for (size_t i = 0; i < sizeof room; i++)
		room[i] = 1;
	cuMemAllocManaged(&p, size, 0);
	room[0] = 2;
}

static void handler(int signal)
{
	unsigned long p;
	cuMemAlloc_v2(&p, 700);
}

// A call waits while the handler of a signal makes another one, on a stack of the
// handler's own.
static void *interrupted(void *signal_stack)
{
	stack_t own = {.ss_sp = signal_stack, .ss_size = 1 << 20};
	unsigned long p;
	if (sigaltstack(&own, NULL))
		abort();
	cuMemPoolTrimTo(prop, 0);
	cuMemAllocManaged(&p, 800, 0);
	return NULL;
}

// The handler's stack lies above the thread's, or below it.
static void signalled(int above)
{
	const size_t size = 1 << 20;
	char *low = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	pthread_attr_t attr;
	pthread_t thread;
	sigaction(SIGUSR1, &action, NULL);
	pthread_attr_init(&attr);
	if (low == MAP_FAILED || pthread_attr_setstack(&attr, above ? low : low + size, size) ||
	    pthread_create(&thread, &attr, interrupted, above ? low + size : low))
		abort();
	pthread_join(thread, NULL);
	munmap(low, 2 * size);
}

// Calls of the program's own that happen inside a call of cuMemAllocManaged: of another
// function, of the same one, and of one that calls a third.
static void own(void)
{
	unsigned long p;
	cuMemAlloc_v2(&p, 701);
	cuMemAllocManaged(&p, 702, 0);
	cuMemAllocHost_v2(&p, 703);
}

static void own_handler(int signal)
{
	own();
}

static void by_signal(void)
{
	signal(SIGUSR1, own_handler);
	raise(SIGUSR1);
}

static void by_fiber(void)
{
	static char stack[1 << 18];
	ucontext_t here, fiber;
	getcontext(&fiber);
	fiber.uc_stack = (stack_t){.ss_sp = stack, .ss_size = sizeof stack};
	fiber.uc_link = &here;
	makecontext(&fiber, own, 0);
	swapcontext(&here, &fiber);
}

static void once(const char *what)
{
	unsigned long p;
	void *address;
	if (strcmp(what, "nested") == 0) {
		cuMemAllocHost_v2(&p, 100);
	} else if (strcmp(what, "tail") == 0) {
		cuMemHostAlloc(&p, 200, 0);
	} else if (strcmp(what, "deep") == 0) {
		cuMemCreate(&p, 300, prop, 0);
	} else if (strcmp(what, "same") == 0) {
		// The call that was jumped over is entered again, deeper.
		if (setjmp(away) == 0)
			jump();
		cuMemAlloc_v2(&p, 400);
	} else if (strcmp(what, "other") == 0) {
		// Another call comes, from a shallower stack.
		if (setjmp(away) == 0)
			deeper(4, jump);
		cuMemFree_v2(0x42);
	} else if (strcmp(what, "jumped") == 0) {
		// Another call comes, from a deeper stack: the one that was jumped
		// over, with one inside it, would tell the whole of it.
		if (setjmp(away) == 0)
			cuMemAllocHost_v2(&p, 13);
		over(100 << 20);
	} else if (strcmp(what, "freed") == 0) {
		cuMemFreeHost(0x43);
	} else if (strcmp(what, "module") == 0) {
		cuModuleLoadData(&address, "");
	} else if (strcmp(what, "above") == 0) {
		signalled(1);
	} else if (strcmp(what, "below") == 0) {
		signalled(0);
	} else if (strcmp(what, "callback") == 0 || strcmp(what, "signal") == 0 || strcmp(what, "fiber") == 0) {
		inside = *what == 'c' ? own : *what == 's' ? by_signal : by_fiber;
		cuMemAllocManaged(&p, 704, 7);
	} else if (strcmp(what, "recursion") == 0) {
		size_t pitch;
		cuMemAllocPitch_v2(&p, &pitch, 100, 3, 4);
	} else if (strcmp(what, "hidden") == 0) {
		cuGetProcAddress_v2("cuMemAlloc", &address, 12000, 0, NULL);
	} else if (strcmp(what, "known") == 0) {
		cuGetProcAddress_v2("cuMemFree", &address, 12000, 0, NULL);
	}
}

int main(void)
{
	char what[32];
	int n;
	puts("up");
	fflush(stdout);
	while (scanf("%31s %d", what, &n) == 2) {
		for (int i = 0; i < n; i++)
			once(what);
		puts(what);
		fflush(stdout);
	}
	return 0;
}
