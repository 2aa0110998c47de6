/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What each thread waits for. The programs that measure waits own this map, and those that sample
 * CPU time share it.
 */
#pragma once

#include "latch.h"
#include <bpf/bpf_helpers.h>

/* What the kernel's entry of a hash map takes. Threads on different CPUs must not write to the same
 * cache line. */
#define ENTRY_BYTES(key, value) (48 + key + value)
_Static_assert(ENTRY_BYTES(8, sizeof(struct wait)) % 64 == 0, "entries share cache lines");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, __u32);
	__type(value, struct wait);
} threads SEC(".maps");
