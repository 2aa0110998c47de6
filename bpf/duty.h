/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which probes are attached at this moment. To stay within its budget, user space switches the
 * probes of a wait function, or the futex programs, off for a while. A wait that was open meanwhile
 * may have ended unseen; its generation shows that.
 */
#pragma once

#include "latch.h"
#include <bpf/bpf_helpers.h>

/* Indexed by wait function; the futex programs come last. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_FUNCTIONS + 1);
	__type(key, __u32);
	__type(value, struct attachment);
} attachments SEC(".maps");

/* How many times the probes of a wait function were switched off. */
static __always_inline __u32 generation(__u32 function)
{
	struct attachment *a = bpf_map_lookup_elem(&attachments, &function);

	return a ? a->generation : 0;
}

/* Whether the probes of a wait function are off at times. */
static __always_inline bool by_turns(__u32 function)
{
	struct attachment *a = bpf_map_lookup_elem(&attachments, &function);

	return a && a->by_turns;
}

/* Whether a wait that begins now is counted. */
static __always_inline bool is_turn(__u32 function, __u64 now)
{
	struct attachment *a = bpf_map_lookup_elem(&attachments, &function);

	return a && now < a->until_ns;
}

/* How many times the futex programs were switched on or off. */
static __always_inline __u32 futex_switches(void)
{
	__u32 library = LIBRARY_FUNCTION;
	struct attachment *a = bpf_map_lookup_elem(&attachments, &library);

	return a ? a->switches : 0;
}

/* Whether the futex programs are on after this number of switches. */
static __always_inline bool is_on(__u32 switches)
{
	return switches % 2;
}

/* Whether the futex programs ignore even the waits that began earlier. */
static __always_inline bool futex_programs_rest(void)
{
	__u32 library = LIBRARY_FUNCTION;
	struct attachment *a = bpf_map_lookup_elem(&attachments, &library);

	return a && a->rests;
}
