// How memory of the stand-in travels between processes: by value in a
// CUipcMemHandle or CUmemPoolPtrExportData, or as the content of a memfd that
// a file descriptor handle names. Workloads forge tokens to play the peer.
#ifndef TOKEN_H
#define TOKEN_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include"
#endif
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TOKEN_MAGIC 0x7465737463756461ull

struct token {
	uint64_t magic, pid, addr, size;
	uint32_t client, object; // the exporter's, of the kernel driver
};

static inline void token_write(void *bytes64, const struct token *t)
{
	memset(bytes64, 0, 64);
	memcpy(bytes64, t, sizeof *t);
}

static inline void token_pack(void *bytes64, uint64_t addr, uint64_t size)
{
	token_write(bytes64, &(struct token){TOKEN_MAGIC, (uint64_t)getpid(), addr, size, 0, 0});
}

static inline bool token_unpack(const void *bytes64, struct token *t)
{
	memcpy(t, bytes64, sizeof *t);
	return t->magic == TOKEN_MAGIC && t->size != 0;
}

// token_fd returns a new descriptor, or -1.
static inline int token_fd(uint64_t addr, uint64_t size)
{
	char bytes[64];
	token_pack(bytes, addr, size);
	int fd = memfd_create("testcuda", MFD_CLOEXEC);
	if (fd >= 0 && pwrite(fd, bytes, sizeof bytes, 0) != sizeof bytes) {
		close(fd);
		return -1;
	}
	return fd;
}

static inline bool token_read(int fd, struct token *t)
{
	char bytes[64];
	return pread(fd, bytes, sizeof bytes, 0) == sizeof bytes && token_unpack(bytes, t);
}

#endif
