// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Counts how often the server computes checksums, and over how many bytes. Every call is seen, so
 * the probes are attached only in short bursts.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "registers.h"
#include "target.h"

char LICENSE[] SEC("license") = "GPL";

/* The most implementations that one server can have chosen. */
#define MAX_CHECKSUMS 4

/* An instruction that all calls of an implementation pass, as an address in the process, and the
 * offset of the register that holds the number of bytes there. */
struct checksum_site {
	__u64 address;
	__u32 length_register;
	__u32 unused;
};

struct checksum_calls {
	/* All hits of the probe. */
	__u64 hits;
	/* The calls during bursts, and their bytes. */
	__u64 calls;
	__u64 bytes;
};

const volatile struct checksum_site sites[MAX_CHECKSUMS];

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_CHECKSUMS);
	__type(key, __u32);
	__type(value, struct checksum_calls);
} calls SEC(".maps");

/* The end of the burst. The probes stay attached for an unknown time beyond it. */
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

	if (!is_target())
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

/* The same for kernels without uprobe_multi, attached site by site. */
SEC("uprobe")
int checksum_site(void *ctx)
{
	return at_call(ctx);
}
