/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counts between which domains of the machine latches are handed over: from the domain of the
 * thread that woke a waiter to the domain of the waiter once it had the latch. The thread that
 * released the latch is identified by its futex wake, so no unlock has to be probed. If a wait
 * ended without a wake, the domain it came from is not known.
 *
 * User space chooses the domains: NUMA nodes, or groups of CPUs that share a cache. If the machine
 * is a single domain, the verifier removes all of this code.
 */
#pragma once

#include "latch.h"
#include "count.h"
#include "losses.h"
#include <bpf/bpf_helpers.h>

const volatile __u32 has_domains;
/* 0 where it is not known. */
const volatile __u8 domain_of_cpu[MAX_CPUS];

struct wake {
	__u64 word;
	__u64 ns;
	__u64 domain;
};

/* The last wake of each word. If two words share an entry, the older wake is forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_WAKES);
	__type(key, __u32);
	__type(value, struct wake);
} wakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_HANDOFFS);
	__type(key, struct handoff_key);
	__type(value, struct handoffs);
} handoffs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_ENTRIES);
	__type(key, struct own_handoff_key);
	__type(value, struct handoffs);
} own_handoffs SEC(".maps");

static const struct handoffs no_handoffs;

/* The domain of the CPU that this thread runs on; 0: not known. */
static __always_inline __u8 current_domain(void)
{
	__u32 cpu;

	if (!has_domains)
		return 0;
	cpu = bpf_get_smp_processor_id();
	return cpu < MAX_CPUS ? domain_of_cpu[cpu] : 0;
}

/* The entry for wakes of a word, which it may share with others. */
static __always_inline struct wake *wake_of(__u64 word)
{
	/* Words are 4 bytes, and latches of a kind lie at equal distances. */
	__u32 index = ((word >> 2) ^ (word >> 12) ^ (word >> 22)) % MAX_WAKES;

	return bpf_map_lookup_elem(&wakes, &index);
}

/* Records that this thread wakes the threads that sleep on a word. */
static __always_inline void note_wake(__u64 word)
{
	struct wake *wake = wake_of(word);

	if (!wake)
		return;
	wake->word = word;
	wake->domain = current_domain();
	wake->ns = bpf_ktime_get_ns();
}

/* The domain of the thread that woke this one, which has slept on the word since then; 0 if it is
 * not known. */
static __always_inline __u8 waker_domain(__u64 word, __u64 since_ns)
{
	struct wake *wake;

	if (!has_domains)
		return 0;
	wake = wake_of(word);
	return wake && wake->word == word && wake->ns >= since_ns ? wake->domain : 0;
}

/* Adds a wait by a thread that began to wait in one domain, was woken from a second, and acquired
 * the latch in a third. */
static __always_inline void add_handoff(const struct latch_key *latch, __u8 begin, __u8 from,
					__u8 to, __u64 ns)
{
	struct own_handoff_key own = {};
	struct handoff_key *key = &own.handoff;
	struct handoffs *h;
	long error = 0;

	if (!has_domains)
		return;
	key->latch = *latch;
	key->from = from;
	key->to = to;
	own.cpu = bpf_get_smp_processor_id();
	h = counter_of(&own_handoffs, &handoffs, &own, key, &no_handoffs, &error);
	if (!h) {
		lose_entry(error, LOST_HANDOFFS_FULL);
		return;
	}
	__sync_fetch_and_add(&h->count, 1);
	__sync_fetch_and_add(&h->sum_ns, ns);
	if (begin != to)
		__sync_fetch_and_add(&h->migrations, 1);
}
