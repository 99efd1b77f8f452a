#include "textflag.h"

// func callSelf(size uint64)
//
// A frame of Go's keeps the frame pointer below the stack pointer, one of C's above,
// which the memo wants.
TEXT ·callSelf(SB), NOSPLIT, $16-8
	MOVD ZR, R0
	MOVD size+0(FP), R1
	SUB  $16, RSP
	CALL ·self(SB)
	ADD  $16, RSP
	RET

// self is called as C calls: an allocation of a size that fails.
TEXT ·self(SB), NOSPLIT|NOFRAME, $0-0
	MOVD $2, R0 // CUDA_ERROR_OUT_OF_MEMORY
	RET

// func selfAddress() uintptr
TEXT ·selfAddress(SB), NOSPLIT, $0-8
	MOVD $·self(SB), R0
	MOVD R0, ret+0(FP)
	RET
