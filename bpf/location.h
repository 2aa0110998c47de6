/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Values at a probe site: in a register, or in memory that a register points to.
 */
#pragma once

#include "latch.h"
#include "registers.h"
#include <bpf/bpf_helpers.h>

static __always_inline bool value_at(void *ctx, const struct place *place, __u64 *value)
{
	__u64 reg;

	if (place->kind == 2) {
		*value = (__u64)place->reg << 32 | (__u32)place->displacement;
		return true;
	}
	reg = saved_register(ctx, place->reg);
	if (place->kind == 1) {
		*value = reg + place->displacement;
		return true;
	}
	*value = 0;
	if (place->kind == 4)
		return !bpf_probe_read_user(value, 4, (void *)(reg + place->displacement));
	if (place->kind == 8)
		return !bpf_probe_read_user(value, 8, (void *)(reg + place->displacement));
	return false;
}
