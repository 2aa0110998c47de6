/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a thread does, as its saved registers show.
 */
#pragma once

#include "latch.h"
#include "kernel.h"
#include "registers.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* The number of the system call futex, and the byte offsets in the saved registers of the system
 * call's number and of its first two arguments. */
const volatile __u32 futex_nr;
const volatile __u32 nr_register;
const volatile __u32 word_register;
const volatile __u32 op_register;

static __always_inline bool is_wait(__u64 op)
{
	op &= FUTEX_CMD_MASK;
	return op == FUTEX_WAIT || op == FUTEX_WAIT_BITSET;
}

/* What a thread does, as far as others can see it: the word on which it sleeps, or one of these
 * with more in the lower bits. */
#define ON_CPU	    (1ULL << DOING_KIND)
#define SYSTEM_CALL (2ULL << DOING_KIND)
#define USER_CODE   (3ULL << DOING_KIND)

/* Instructions that are this close count as the same. */
#define CODE_SHIFT 6

/* What a thread does. `is_interrupted` says whether it runs on this CPU, in an interrupt. */
static __always_inline __u64 doing(struct task_struct *task, bool is_interrupted)
{
	void *saved;
	__u32 nr;

	/* The registers of a thread that runs are those of its last system call. */
	if (!is_interrupted && bpf_core_field_exists(task->on_cpu) && task->on_cpu)
		return ON_CPU;
	saved = (void *)bpf_task_pt_regs(task);
	nr = saved_register(saved, nr_register);
	if ((int)nr < 0)
		return USER_CODE | saved_register(saved, ip_register) >> CODE_SHIFT;
	if (nr == futex_nr && is_wait(saved_register(saved, op_register)))
		return saved_register(saved, word_register);
	return SYSTEM_CALL | nr;
}
