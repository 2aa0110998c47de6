/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the programs themselves cost: how often each ran, and for how long.
 *
 * User space derives from this how much of its budget the measurement uses. METERED is the number
 * of probes, and is defined by who includes this.
 */
#pragma once

#include "latch.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, METERED);
	__type(key, __u32);
	__type(value, struct hits);
} hits SEC(".maps");

/* Counts a hit. A thread of a preemptible kernel may be interrupted here by another on its CPU. */
static __always_inline struct hits *hit(__u32 index)
{
	struct hits *h = bpf_map_lookup_elem(&hits, &index);

	if (h)
		__sync_fetch_and_add(&h->count, 1);
	return h;
}

/* Whether this hit is one of those that are timed. */
static __always_inline bool is_timed(const struct hits *h)
{
	return h && h->count % TIMED_HITS == 0;
}

/* A program that seems to have run for longer was interrupted. */
#define LONGEST_RUN_NS 20000

/* To be called last, with the time at which the program began; 0 if it is not known. */
static __always_inline void add_time(struct hits *h, __u64 begin_ns)
{
	if (begin_ns && is_timed(h)) {
		__u64 ns = bpf_ktime_get_ns() - begin_ns;

		__sync_fetch_and_add(&h->timed_ns, ns < LONGEST_RUN_NS ? ns : LONGEST_RUN_NS);
	}
}
