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
#define MOST_SAMPLED_WAITS 100

/* What user space wants. */
struct wait_sampling {
	/* The time waited on a CPU for which there is one sample; 0: no samples are wanted. */
	__u64 period_ns;
	/* How often user space has taken samples out. */
	__u64 round;
};

/* How far a CPU is with its next sample. */
struct wait_sampler {
	/* How much waiting is left until then; 0 before the first. */
	__u64 left_ns;
	__u64 round;
	/* The samples since this round began. */
	__u32 taken;
	/* Whether one is being taken: a preemptible kernel may run another thread meanwhile. */
	__u32 is_busy;
};

/* What a thread executed while it waited. */
struct waiting_statement {
	struct latch_key latch;
	/* For how many samples it stands. */
	__u32 weight;
	__u32 unused;
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

/* How many samples are due after this time waited. */
static __always_inline __u32 due_samples(struct wait_sampler *own, __u64 ns, __u64 period_ns)
{
	__u64 over;

	if (!own->left_ns || own->left_ns > period_ns)
		own->left_ns = 1 + bpf_get_prandom_u32() % period_ns;
	if (ns < own->left_ns) {
		own->left_ns -= ns;
		return 0;
	}
	over = ns - own->left_ns;
	own->left_ns = period_ns - over % period_ns;
	return 1 + over / period_ns;
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

/* This thread has waited for a latch for so long. */
static __always_inline void sample_wait(const struct latch_key *latch, __u64 ns)
{
	struct wait_sampling *wanted;
	struct waiting_statement *next;
	struct wait_sampler *own;
	__u32 zero = 0, due;

	wanted = bpf_map_lookup_elem(&wait_sampling, &zero);
	if (!wanted || !wanted->period_ns)
		return;
	own = bpf_map_lookup_elem(&wait_samplers, &zero);
	if (!own || own->is_busy)
		return;
	due = due_samples(own, ns, wanted->period_ns);
	if (!due || !may_sample(own, wanted->round))
		return;
	next = bpf_map_lookup_elem(&next_waiting, &zero);
	if (!next)
		return;
	own->is_busy = true;
	next->latch = *latch;
	next->weight = due;
	read_executed(&next->executed);
	bpf_map_push_elem(&waiting_statements, next, BPF_ANY);
	own->is_busy = false;
}
