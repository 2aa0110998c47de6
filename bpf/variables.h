/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where a thread has its own variables.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_core_read.h>

/* The thread's pointer to its own variables; 0 if the kernel does not show it. That of a thread
 * that runs is as it was when it last began to run. It seldom changes after the thread's start. */
static __always_inline __u64 thread_pointer(struct task_struct *task)
{
	struct task_struct___x86 *x86 = (void *)task;
	struct task_struct___arm64 *arm64 = (void *)task;

	if (bpf_core_field_exists(x86->thread.fsbase))
		return BPF_CORE_READ(x86, thread.fsbase);
	if (bpf_core_field_exists(arm64->thread.uw.tp_value))
		return BPF_CORE_READ(arm64, thread.uw.tp_value);
	return 0;
}
