/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Values at a probe site: in a register, or in memory that a register points to.
 */
#pragma once

#include "latch.h"
#include "registers.h"
#include <bpf/bpf_helpers.h>

/* Reads the value at a location; returns false if there is none, or if it cannot be read. */
static __always_inline bool value_at(void *ctx, const struct location *location, __u64 *value)
{
	__u64 reg;

	if (location->kind == LOCATION_CONSTANT) {
		*value = (__u64)location->reg << 32 | (__u32)location->displacement;
		return true;
	}
	reg = saved_register(ctx, location->reg);
	if (location->kind == LOCATION_SUM) {
		*value = reg + location->displacement;
		return true;
	}
	*value = 0;
	if (location->kind == LOCATION_MEMORY_32)
		return !bpf_probe_read_user(value, 4, (void *)(reg + location->displacement));
	if (location->kind == LOCATION_MEMORY_64)
		return !bpf_probe_read_user(value, 8, (void *)(reg + location->displacement));
	return false;
}
