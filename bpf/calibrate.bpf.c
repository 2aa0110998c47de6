// SPDX-License-Identifier: GPL-2.0-only
/* The smallest program a uprobe can run: what is left is the price of the probe itself. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

__u64 calls = 0;

SEC("uprobe")
int empty(void *ctx)
{
	calls += 1;
	return 0;
}

SEC("tracepoint")
int empty_tracepoint(void *ctx)
{
	calls += 1;
	return 0;
}

SEC("uprobe.multi")
int empty_multi(void *ctx)
{
	return 0;
}
