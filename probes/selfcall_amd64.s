#include "textflag.h"

// func callSelf(size uint64)
TEXT ·callSelf(SB), NOSPLIT, $8-8
	XORL DI, DI
	MOVQ size+0(FP), SI
	CALL ·self(SB)
	RET

// self is called as C calls: an allocation of a size that fails.
TEXT ·self(SB), NOSPLIT|NOFRAME, $0-0
	MOVL $2, AX // CUDA_ERROR_OUT_OF_MEMORY
	RET

// func selfAddress() uintptr
TEXT ·selfAddress(SB), NOSPLIT, $0-8
	LEAQ ·self(SB), AX
	MOVQ AX, ret+0(FP)
	RET
