// A libcuda whose functions begin in every way that says where their probes lie.
#include <stddef.h>

int ready = 1;
static unsigned long next = 0x10000;

__attribute__((used)) static int take(unsigned long *p) { return *p = next += 0x1000, 0; }
__attribute__((used)) static int give(unsigned long p) { return p == 1; }

#define FUNCTION(name, code)                                                                  \
	__asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" \
		code "\n.size " #name ", .-" #name "\n")
#define CALL(what) "push %rbx\ncall " #what "\npop %rbx\nret"

FUNCTION(cuMemAlloc_v2, "cmpl $0,ready(%rip)\n" CALL(take)); // behind the cmp
FUNCTION(cuMemFree_v2, "endbr64\nmov ready(%rip),%eax\ntest %eax,%eax\nje 1f\n" CALL(give) "\n1: mov $3,%eax\nret"); // at the je
FUNCTION(cuMemAllocHost_v2, "mov %rdi,%rax\nmov $1,%edx\n" CALL(take)); // at the start: the mov of an argument
FUNCTION(cuMemFreeHost, "sub $8,%rsp\ncall give\nadd $8,%rsp\nret"); // at the start
// At the start: the je runs three times.
FUNCTION(cuMemAllocManaged, "mov $2,%eax\ntest %eax,%eax\n1: je 2f\nsub $1,%eax\njmp 1b\n2:\n" CALL(take));
