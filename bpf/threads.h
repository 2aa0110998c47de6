/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What each thread waits for. The programs that measure waits own these maps, and those that sample
 * CPU time share them.
 */
#pragma once

#include "latch.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, __u32);
	__type(value, struct wait);
} threads SEC(".maps");

/* Indexed by wait function; the futex programs come last. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_FUNCTIONS + 1);
	__type(key, __u32);
	__type(value, struct attachment);
} attachments SEC(".maps");
