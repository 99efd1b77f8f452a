// Maps FILE as code and unmaps it again, without end.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>

int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDONLY);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	puts("up");
	fflush(stdout);
	for (;;) {
		void *at = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
		if (at == MAP_FAILED)
			return 1;
		munmap(at, 4096);
	}
}
