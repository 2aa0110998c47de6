/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counters in hash maps.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>

/* The map's entry for a key, which is inserted as `empty` if it is new; NULL if there is no room
 * for it. */
static __always_inline void *entry_of(void *map, const void *key, const void *empty)
{
	void *entry = bpf_map_lookup_elem(map, key);

	if (!entry) {
		bpf_map_update_elem(map, key, empty, BPF_NOEXIST);
		entry = bpf_map_lookup_elem(map, key);
	}
	return entry;
}

/* Once so much time is counted under a key, each CPU counts in an entry of its own. */
#define BUSY_NS 1000000

/* The entry in which this CPU counts waits for a key, to which `own_key` adds the number of the
 * CPU. CPUs would wait for each other to write to one entry, so a key with many waits has an entry
 * for each CPU, if there is room. Entries begin with the sum of the waits. NULL if there is no room
 * at all. */
static __always_inline void *counter_of(void *own, void *shared, const void *own_key,
					const void *key, const void *empty)
{
	__u64 *entry = bpf_map_lookup_elem(own, own_key);
	__u64 *all;

	if (entry)
		return entry;
	all = entry_of(shared, key, empty);
	if (!all || *all < BUSY_NS)
		return all;
	entry = entry_of(own, own_key, empty);
	return entry ? entry : all;
}

/* Adds to the map's entry; returns false if there is no room for it. */
static __always_inline bool add_to(void *map, const void *key, __u64 more)
{
	__u64 *n = bpf_map_lookup_elem(map, key);

	if (!n) {
		if (!bpf_map_update_elem(map, key, &more, BPF_NOEXIST))
			return true;
		/* Another CPU was first, or there is no room. */
		n = bpf_map_lookup_elem(map, key);
	}
	if (n)
		__sync_fetch_and_add(n, more);
	return n;
}
