// SPDX-License-Identifier: GPL-2.0-or-later
/* Counts waits for one latch as the probes' programs do. */
#include "histogram.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Waits that one run counts. */
#define WAITS 1000

static long count_wait(__u32 index, __u64 *ns)
{
	struct callsite_key callsite = {.latch.id = *ns, .address = 1};

	add_wait(&callsite, 1, *ns, true, *ns, 1);
	return 0;
}

static __always_inline int count_waits(__u64 ns)
{
	bpf_loop(WAITS, count_wait, &ns, 0);
	return 0;
}

/* Waits without a duration never make a latch busy, so all CPUs count in the same entry. */
SEC("raw_tp")
int together(void *ctx)
{
	return count_waits(0);
}

/* After the first waits, each CPU counts in an entry of its own. */
SEC("raw_tp")
int alone(void *ctx)
{
	return count_waits(2000);
}
