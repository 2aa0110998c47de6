// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How often the server computes checksums, and of how many bytes. Every call is seen, and so the
 * probes are on for short bursts only.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "registers.h"

char LICENSE[] SEC("license") = "GPL";

/* Implementations that one server may have chosen. */
#define MAX_CHECKSUMS 4

/* Where all calls of an implementation pass, in the process, and where in the saved registers the
 * number of bytes is then. */
struct checksum_site {
	__u64 address;
	__u32 length_register;
	__u32 unused;
};

struct checksum_calls {
	/* Of the probe. */
	__u64 hits;
	/* In bursts, and the bytes that these were given. */
	__u64 calls;
	__u64 bytes;
};

const volatile __u32 target_tgid;
/* Byte offset of the instruction pointer in the saved registers. */
const volatile __u32 ip_register;
const volatile struct checksum_site sites[MAX_CHECKSUMS];

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_CHECKSUMS);
	__type(key, __u32);
	__type(value, struct checksum_calls);
} calls SEC(".maps");

/* When the burst ends: the probes are on for some longer, and nobody knows how much. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} burst_end SEC(".maps");

static __always_inline void count_call(void *ctx, __u32 index, __u32 length_register)
{
	struct checksum_calls *c = bpf_map_lookup_elem(&calls, &index);
	__u32 zero = 0;
	__u64 *end = bpf_map_lookup_elem(&burst_end, &zero);

	if (!c || !end)
		return;
	c->hits += 1;
	if (bpf_ktime_get_ns() > *end)
		return;
	c->calls += 1;
	c->bytes += saved_register(ctx, length_register);
}

static __always_inline int at_call(void *ctx)
{
	__u64 address;

	if (bpf_get_current_pid_tgid() >> 32 != target_tgid)
		return 0;
	address = saved_register(ctx, ip_register);
	for (__u32 i = 0; i < MAX_CHECKSUMS; i++) {
		if (sites[i].address == address)
			count_call(ctx, i, sites[i].length_register);
	}
	return 0;
}

SEC("uprobe.multi")
int checksum_sites(void *ctx)
{
	return at_call(ctx);
}

/* For kernels without uprobe_multi: the same, attached site by site. */
SEC("uprobe")
int checksum_site(void *ctx)
{
	return at_call(ctx);
}
