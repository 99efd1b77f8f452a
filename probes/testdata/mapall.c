// A process for each of the files FILE..., which maps it as code: as fast as they
// can be had. They end with the first.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
	pid_t parent = getpid();
	for (int i = 1; i < argc; i++) {
		if (fork() != 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			return 0;
		mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, open(argv[i], O_RDONLY), 0);
		return pause();
	}
	return pause();
}
