// A signal's frame as the first code of a page, and of the file.
	.text
	.balign 65536
	.globl first
first:
	.cfi_startproc
	.cfi_signal_frame
	ret
	.cfi_endproc
	.section .note.GNU-stack,"",%progbits
