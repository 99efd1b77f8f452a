// Calls each function of starts.c as many times as a line of stdin says.
#include <stddef.h>
#include <stdio.h>

int cuMemAlloc_v2(unsigned long *, size_t), cuMemFree_v2(unsigned long);
int cuMemAllocHost_v2(unsigned long *, size_t), cuMemFreeHost(unsigned long);
int cuMemAllocManaged(unsigned long *, size_t, unsigned);

int main(void)
{
	int n, wrong = 0;
	unsigned long p;
	puts("up");
	fflush(stdout);
	while (scanf("%d", &n) == 1) {
		for (int i = 0; i < n; i++) {
			wrong += cuMemAlloc_v2(&p, 100) != 0 || cuMemFree_v2(p) != 0 || cuMemFree_v2(1) != 1;
			wrong += cuMemAllocHost_v2(&p, 200) != 0 || cuMemFreeHost(p) != 0;
			wrong += cuMemAllocManaged(&p, 300, 1) != 0;
		}
		printf("wrong %d\n", wrong);
		fflush(stdout);
	}
	return 0;
}
