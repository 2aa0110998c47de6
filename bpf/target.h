/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The server process that is measured.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>

const volatile __u32 target_tgid;

static __always_inline bool is_target(void)
{
	return bpf_get_current_pid_tgid() >> 32 == target_tgid;
}
