/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counters in hash maps.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>

/* The error of an insertion into a map without room. Others come from what is happening to the same
 * place at the same moment: EBUSY if this program has interrupted a change to it, EDEADLK or
 * ETIMEDOUT instead from Linux 6.15 on. Trying again would not help: the other goes on later. */
#define E2BIG 7

/* The map's entry for a key, which is inserted as `empty` if it is new; NULL if it cannot be, and
 * then the error says why. */
static __always_inline void *entry_of(void *map, const void *key, const void *empty, long *error)
{
	void *entry = bpf_map_lookup_elem(map, key);

	if (!entry) {
		*error = bpf_map_update_elem(map, key, empty, BPF_NOEXIST);
		entry = bpf_map_lookup_elem(map, key);
	}
	return entry;
}

/* Once so much time is counted under a key, each CPU counts in an entry of its own. */
#define BUSY_NS 1000000

/* The entry in which this CPU counts waits for a key, to which `own_key` adds the number of the
 * CPU. CPUs would wait for each other to write to one entry, so a key with many waits has an entry
 * for each CPU, if there is room. Entries begin with the sum of the waits. NULL if there is no
 * entry at all, and then the error says why. */
static __always_inline void *counter_of(void *own, void *shared, const void *own_key,
					const void *key, const void *empty, long *error)
{
	__u64 *entry = bpf_map_lookup_elem(own, own_key);
	__u64 *all;
	long own_error;

	if (entry)
		return entry;
	all = entry_of(shared, key, empty, error);
	if (!all || *all < BUSY_NS)
		return all;
	entry = entry_of(own, own_key, empty, &own_error);
	return entry ? entry : all;
}

/* Adds to the map's entry; returns 0, or the error if there is none and it cannot be inserted. */
static __always_inline long add_to(void *map, const void *key, __u64 more)
{
	__u64 *n = bpf_map_lookup_elem(map, key);
	long error = 0;

	if (!n) {
		error = bpf_map_update_elem(map, key, &more, BPF_NOEXIST);
		if (!error)
			return 0;
		/* Another CPU was first, or there is no room. */
		n = bpf_map_lookup_elem(map, key);
	}
	if (!n)
		return error;
	__sync_fetch_and_add(n, more);
	return 0;
}
