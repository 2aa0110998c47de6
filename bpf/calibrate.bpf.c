// SPDX-License-Identifier: GPL-2.0-or-later
/* The smallest programs that a probe can run: what remains is the cost of the probe itself. */
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

SEC("raw_tp")
int empty_raw_tracepoint(void *ctx)
{
	calls += 1;
	return 0;
}

SEC("perf_event")
int empty_sample(void *ctx)
{
	calls += 1;
	return 0;
}

SEC("fentry/futex_wait")
int empty_wait_enter(void *ctx)
{
	calls += 1;
	return 0;
}

SEC("fexit/futex_wait")
int empty_wait_exit(void *ctx)
{
	calls += 1;
	return 0;
}

/* Hits by cookie, which show whether one link distinguishes its sites and sees all threads of the
 * process. */
__u64 multi_hits[2] = {};

SEC("uprobe.multi")
int empty_multi(void *ctx)
{
	multi_hits[bpf_get_attach_cookie(ctx) & 1] += 1;
	return 0;
}
