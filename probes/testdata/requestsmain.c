// Makes the requests of requests.c as often as a line of stdin says, and answers
// them itself: every third is interrupted, and inside some there is a signal's
// handler, which allocates.
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

int cuMemAlloc_v2(unsigned long *, size_t);
int ask(int, unsigned long, unsigned *), give(int, unsigned *), map(int, unsigned *);

#define HANDLER 0x77 // object

int ioctl(int fd, unsigned long request, ...)
{
	static int n;
	unsigned long q;
	va_list args;
	va_start(args, request);
	unsigned *p = va_arg(args, unsigned *);
	va_end(args);
	if (request == 0xc0104629 && p[2] == HANDLER)
		cuMemAlloc_v2(&q, 300);
	if (request != 0x21 && fd == 7 && ++n % 3 == 0) {
		errno = EINTR;
		return -1;
	}
	p[3] = request == 0x21 ? p[3] + 1 : 0;
	return 0;
}

int main(void)
{
	int n, wrong = 0;
	puts("up");
	fflush(stdout);
	while (scanf("%d", &n) == 1) {
		for (unsigned i = 0; i < (unsigned)n; i++) {
			unsigned asked[] = {1, 2, 3, -1}, given[] = {1, 2, 4, -1}, handled[] = {1, 2, HANDLER, -1}, mapped[4] = {0};
			wrong += ask(7, 0xc0104629, asked) != 0 || give(8, given) != 0 || ask(8, 0xc0104629, handled) != 0;
			wrong += map(8, mapped) != 0 || mapped[3] != 1 || ask(8, 0xc01046d6, asked) != 0;
		}
		printf("wrong %d\n", wrong);
		fflush(stdout);
	}
	return 0;
}
