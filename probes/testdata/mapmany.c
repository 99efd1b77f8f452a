// PROCESSES processes, which map the files that they are told of, one a line, as
// code: each the next PER of them. They end with this one.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
	static char paths[65536][256];
	int processes = atoi(argv[1]), per = atoi(argv[2]), files = 0, ready[2];
	pid_t parent = getpid();
	while (files < 65536 && fgets(paths[files], sizeof paths[0], stdin) && paths[files][0] != '\n')
		paths[files][strcspn(paths[files], "\n")] = 0, files++;
	if (pipe(ready) != 0)
		return 1;
	for (int i = 0; i < processes; i++) {
		if (fork() != 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			return 0;
		for (int f = i * per; f < (i + 1) * per && f < files; f++) {
			int fd = open(paths[f], O_RDONLY);
			if (fd < 0 || mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
				return 1;
			close(fd);
		}
		if (write(ready[1], "", 1) != 1)
			return 1;
		return pause();
	}
	for (int i = 0; i < processes; i++)
		if (read(ready[0], &(char){0}, 1) != 1)
			return 1;
	puts("up");
	fflush(stdout);
	return getchar() == EOF ? 0 : pause();
}
