// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Samples the server's instructions at hardware events. A CPU that has counted a number of events
 * interrupts what it is running. If that is a thread of the server, this number is added to the
 * instruction. No event leaves the kernel.
 */
#include "event.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "count.h"
#include "registers.h"
#include "target.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct event_vocabulary vocabulary;

struct perf_event_attr {
	__u32 type;
	__u64 config;
	__u64 config1;
} __attribute__((preserve_access_index));

struct perf_event {
	struct perf_event_attr attr;
} __attribute__((preserve_access_index));

/* What the kernel passes to a program on an event. This is not part of its interface, so it is
 * found by its types. */
struct bpf_perf_event_data_kern {
	void *regs;
	struct perf_event *event;
} __attribute__((preserve_access_index));

/* The number of events by instruction, since user space last collected them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MIN_EVENT_SAMPLES);
	__type(key, struct event_key);
	__type(value, __u64);
} event_samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hits);
} event_hits SEC(".maps");

/* The most events that are sampled at the same time. */
#define MAX_EVENTS 64

/* What an event's counter on this CPU showed at the last sample, of any process; `address` is 0.
 * User space empties this before it opens the events, whose counters begin at 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, MAX_EVENTS);
	__type(key, struct event_key);
	__type(value, __u64);
} event_counts SEC(".maps");

/* Samples that are missing, by cause. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENT_LOST_CAUSES);
	__type(key, __u32);
	__type(value, __u64);
} lost_events SEC(".maps");

/* The events on this CPU since the last sample. The sample's own period is not that: the kernel
 * adapts it to the rate of events, and may end a period long before it is over. */
static __always_inline __u64 events_since_last(void *ctx, const struct event_key *key)
{
	struct bpf_perf_event_value now = {};
	__u64 *last, since;

	if (bpf_perf_prog_read_value(ctx, &now, sizeof(now)))
		return 0;
	last = bpf_map_lookup_elem(&event_counts, key);
	if (!last) {
		/* Without a place for the count, the next difference would not be known either. */
		if (bpf_map_update_elem(&event_counts, key, &now.counter, BPF_ANY))
			return 0;
		return now.counter;
	}
	since = now.counter - *last;
	*last = now.counter;
	return since;
}

SEC("perf_event")
int event_sample(struct bpf_perf_event_data_kern *ctx)
{
	struct event_key key = {};
	struct perf_event *event;
	__u64 now, events, *lost;
	struct hits *h;
	__u32 zero = 0, cause;
	long error;

	now = bpf_ktime_get_ns();
	event = BPF_CORE_READ(ctx, event);
	key.kind = BPF_CORE_READ(event, attr.type);
	key.config = BPF_CORE_READ(event, attr.config);
	key.config1 = BPF_CORE_READ(event, attr.config1);
	events = events_since_last(ctx, &key);
	if (!is_target())
		return 0;
	key.address = saved_register(BPF_CORE_READ(ctx, regs), ip_register);
	error = add_to(&event_samples, &key, events);
	if (error) {
		cause = error == -E2BIG ? EVENT_LOST_FULL : EVENT_LOST_BUSY;
		lost = bpf_map_lookup_elem(&lost_events, &cause);
		if (lost)
			*lost += 1;
	}
	h = bpf_map_lookup_elem(&event_hits, &zero);
	if (h) {
		h->count += 1;
		h->timed_ns += bpf_ktime_get_ns() - now;
	}
	return 0;
}
