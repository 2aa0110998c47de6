/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What could not be counted, by cause: nothing is dropped silently.
 */
#pragma once

#include "latch.h"
#include "count.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOST_CAUSES);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* Counts a loss; `cause` is an enum lost. A thread of a preemptible kernel may be interrupted here
 * by another on its CPU. */
static __always_inline void lose(__u32 cause)
{
	__u64 *n = bpf_map_lookup_elem(&lost, &cause);

	if (n)
		__sync_fetch_and_add(n, 1);
}

/* Counts the loss of what has no entry in a map: because there is no room, for which `full` is the
 * cause, or because of another error. */
static __always_inline void lose_entry(long error, __u32 full)
{
	lose(error == -E2BIG ? full : LOST_MAP_BUSY);
}
