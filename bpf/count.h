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
