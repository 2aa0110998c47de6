/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The probe sites, and which of them was hit.
 */
#pragma once

#include "latch.h"
#include "registers.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SITES);
	__type(key, __u32);
	__type(value, struct site);
} sites SEC(".maps");

/* The index of a site by its address, for kernels without attach cookies. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SITES);
	__type(key, __u64);
	__type(value, __u32);
} site_at SEC(".maps");

/* The site that was hit, by its attach cookie or, on kernels without cookies, by its address. */
static __always_inline struct site *site_here(void *ctx, __u32 *index)
{
	if (bpf_core_enum_value_exists(enum bpf_func_id___cookie,
				       BPF_FUNC_get_attach_cookie___cookie)) {
		*index = bpf_get_attach_cookie(ctx);
	} else {
		__u64 address = saved_register(ctx, ip_register);
		__u32 *found = bpf_map_lookup_elem(&site_at, &address);

		if (!found)
			return NULL;
		*index = *found;
	}
	return bpf_map_lookup_elem(&sites, index);
}
