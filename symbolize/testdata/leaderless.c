// Ends its first thread and goes on in another.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int main(void);

static void *rest(void *unused) {
	printf("main %lx\n", (unsigned long)main);
	fflush(stdout);
	while (getchar() != EOF) {}
	exit(0);
}

int main(void) {
	pthread_t t;
	pthread_create(&t, 0, rest, 0);
	pthread_exit(0);
}
