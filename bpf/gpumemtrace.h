/* SPDX-License-Identifier: GPL-2.0 */
/* The parts that all programs share, in the order of one call: gm_enter (calls.h) stores the
 * arguments in the thread's state (thread.h). gm_leave looks the function up in the table
 * (table.h) and makes the event (records.h). The program then takes the stack (stacks.h, or
 * unwind.bpf.c), and gm_finish sends the event within its user's part of the ring buffer
 * (users.h). */
#ifndef GPUMEMTRACE_H
#define GPUMEMTRACE_H

#include "platform.h"

/* A step of a program. Where the including program has global functions it is one,
 * which the verifier checks once and by itself. arm64 has none together with tail calls
 * before Linux 6.0. On Linux 6.1 the argument of a global function cannot be a map's key, so what
 * looks up a process by one is inlined. */
#ifndef gm_step
#define gm_step gm_inline
#endif

const volatile u32 cfg_pidns_inum = 0;	/* the tracer's PID namespace; 0: the initial one */
const volatile u32 cfg_all = 0;		/* trace every process */
const volatile u32 cfg_follow = 1;	/* trace the children of targets */
const volatile u32 cfg_free_stacks = 0; /* take a stack where a tensor is freed, too */
const volatile u32 cfg_session = 0;	/* probes are attached as sessions (gm_call_enter) */

#include "records.h"
#include "table.h"
#include "users.h"
#include "thread.h"
#include "stacks.h"
#include "calls.h"

#endif
