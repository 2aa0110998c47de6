/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which statements wait: at the ends of some waits, it is noted what the thread executes. A wait is
 * the likelier to be chosen the longer it was, so each sample stands for the same time waited.
 */
#pragma once

#include "latch.h"
#include "executed.h"
#include "statement.h"
#include <bpf/bpf_helpers.h>

/* The most samples that a CPU takes until user space has taken some out. */
#define MOST_SAMPLED_WAITS 200

/* What user space wants. */
struct wait_sampling {
	/* One sample for so much waiting that ends on a CPU, in nanoseconds; 0: none. */
	__u64 period_ns;
	/* How often user space has taken samples out. */
	__u64 round;
};

/* How far a CPU is with its samples. */
struct wait_sampler {
	/* How much waiting is left until the next; 0 before the first. */
	__u64 left_ns;
	/* The waiting that was open to be sampled so far. */
	__u64 waited_ns;
	__u64 round;
	/* The samples since this round began. */
	__u32 taken;
	/* Whether one is being taken: a preemptible kernel may run another thread meanwhile. */
	__u32 is_busy;
};

/* What a thread executed while it waited. */
struct waiting_statement {
	struct latch_key latch;
	/* For how much waiting it stands. */
	__u64 ns;
	struct executed executed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wait_sampling);
} wait_sampling SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wait_sampler);
} wait_samplers SEC(".maps");

/* Samples, until user space takes them. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, struct waiting_statement);
} waiting_statements SEC(".maps");

/* Where a sample is put together: the stack has no room for it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct waiting_statement);
} next_waiting SEC(".maps");

/* For how much waiting a sample stands that is due after this time; 0 if none is due. */
static __always_inline __u64 due(struct wait_sampler *own, __u64 ns, __u64 period_ns)
{
	__u64 over;

	own->waited_ns += ns;
	if (!own->left_ns || own->left_ns > period_ns)
		own->left_ns = 1 + bpf_get_prandom_u32() % period_ns;
	if (ns < own->left_ns) {
		own->left_ns -= ns;
		return 0;
	}
	over = ns - own->left_ns;
	own->left_ns = period_ns - over % period_ns;
	return (1 + over / period_ns) * period_ns;
}

/* Whether this CPU may take another sample in this round. */
static __always_inline bool may_sample(struct wait_sampler *own, __u64 round)
{
	if (own->round != round) {
		own->round = round;
		own->taken = 0;
	}
	own->taken += 1;
	return own->taken <= MOST_SAMPLED_WAITS;
}

/* Takes a sample that stands for so much waiting. */
static __always_inline void take_sample(const struct latch_key *latch, __u64 ns)
{
	struct waiting_statement *next;
	__u32 zero = 0;

	next = bpf_map_lookup_elem(&next_waiting, &zero);
	if (!next)
		return;
	next->latch = *latch;
	next->ns = ns;
	read_executed(&next->executed, true);
	bpf_map_push_elem(&waiting_statements, next, BPF_ANY);
}

/* This thread has waited for a latch for so long. Returns whether that was sampled, which takes
 * some microseconds. */
static __always_inline bool sample_wait(const struct latch_key *latch, __u64 ns)
{
	struct wait_sampling *wanted;
	struct wait_sampler *own;
	bool is_sampled = false;
	__u32 zero = 0;
	__u64 due_ns;

	wanted = bpf_map_lookup_elem(&wait_sampling, &zero);
	if (!wanted || !wanted->period_ns)
		return false;
	own = bpf_map_lookup_elem(&wait_samplers, &zero);
	if (!own || own->is_busy)
		return false;
	own->is_busy = true;
	due_ns = due(own, ns, wanted->period_ns);
	if (due_ns && may_sample(own, wanted->round)) {
		take_sample(latch, due_ns);
		is_sampled = true;
	}
	own->is_busy = false;
	return is_sampled;
}
