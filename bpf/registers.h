/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A thread's saved registers, read by byte offsets that user space knows for each architecture.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* Byte offset of the instruction pointer in the saved registers. */
const volatile __u32 ip_register;

/* All saved registers lie within this many bytes; the verifier requires a bound. */
#define REGISTERS_SIZE 512

/* The saved register at this byte offset. */
static __always_inline __u64 saved_register(void *ctx, __u32 offset)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), ctx + offset % REGISTERS_SIZE);
	return value;
}

/* A register of this thread as its program left it; 0 on kernels that do not show registers. */
static __always_inline __u64 user_register(__u32 offset)
{
	if (!bpf_core_enum_value_exists(enum bpf_func_id___regs, BPF_FUNC_task_pt_regs___regs))
		return 0;
	return saved_register((void *)bpf_task_pt_regs(bpf_get_current_task_btf()), offset);
}
