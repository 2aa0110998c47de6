/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where finished waits are added up: a histogram for each latch, and sums for each call site.
 */
#pragma once

#include "latch.h"
#include "buckets.h"
#include "count.h"
#include "losses.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LATCHES);
	__type(key, struct latch_key);
	__type(value, struct waits);
} latches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLSITES);
	__type(key, struct callsite_key);
	__type(value, struct callsite_waits);
} callsites SEC(".maps");

/* User space chooses how many entries these have. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_ENTRIES);
	__type(key, struct own_latch_key);
	__type(value, struct waits);
} own_latches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_ENTRIES);
	__type(key, struct own_callsite_key);
	__type(value, struct callsite_waits);
} own_callsites SEC(".maps");

static const struct waits no_waits;
static const struct callsite_waits no_callsite_waits;

/* Adds a wait of ns to its call site. */
static __always_inline void add_callsite(const struct callsite_key *key, __u64 ns)
{
	struct own_callsite_key own = {.callsite = *key, .cpu = bpf_get_smp_processor_id()};
	long error = 0;
	struct callsite_waits *at =
	    counter_of(&own_callsites, &callsites, &own, key, &no_callsite_waits, &error);

	if (!at) {
		lose_entry(error, LOST_CALLSITES_FULL);
		return;
	}
	__sync_fetch_and_add(&at->count, 1);
	__sync_fetch_and_add(&at->sum_ns, ns);
}

/* Adds a wait of ns to its latch; returns false if there is no room for it. The time asleep is
 * known only if the wait was watched. */
static __always_inline bool add_wait(const struct callsite_key *callsite, __u64 latch, __u64 ns,
				     bool is_watched, __u64 sleep_ns, __u32 sleeps)
{
	struct own_latch_key own = {.latch = callsite->latch, .cpu = bpf_get_smp_processor_id()};
	long error = 0;
	struct waits *total =
	    counter_of(&own_latches, &latches, &own, &own.latch, &no_waits, &error);
	__u32 bucket = bucket_of(ns);

	if (!total) {
		lose_entry(error, LOST_LATCHES_FULL);
		return false;
	}
	__sync_fetch_and_add(&total->sum_ns, ns);
	if (is_watched) {
		__sync_fetch_and_add(&total->watched, 1);
		__sync_fetch_and_add(&total->watched_ns, ns);
		if (sleeps) {
			__sync_fetch_and_add(&total->sleep_ns, sleep_ns);
			__sync_fetch_and_add(&total->sleeps, sleeps);
			__sync_fetch_and_add(&total->slept, 1);
		}
	}
	if (bucket < BUCKETS)
		__sync_fetch_and_add(&total->buckets[bucket], 1);
	raise_maximum(&total->max_ns, ns);
	total->example = latch;
	add_callsite(callsite, ns);
	return true;
}
