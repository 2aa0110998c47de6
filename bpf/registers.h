/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A thread's saved registers, read by byte offsets that user space knows for each architecture.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>

static __always_inline __u64 saved_register(void *ctx, __u32 offset)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), ctx + (offset & 0x1ff));
	return value;
}
