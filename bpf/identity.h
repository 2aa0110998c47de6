/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which latch a thread waits for at a probe site, in which mode, and from which call site.
 */
#pragma once

#include "latch.h"
#include "callsite.h"
#include "location.h"
#include "psi.h"
#include <bpf/bpf_helpers.h>

/* The server's .data and .bss. */
const volatile __u64 static_begin;
const volatile __u64 static_end;

static __always_inline bool is_static(__u64 address)
{
	return address >= static_begin && address < static_end;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_FUNCTIONS);
	__type(key, __u32);
	__type(value, struct latch_kinds);
} kinds SEC(".maps");

/* What this wait is for; NULL if it is of no known kind. */
static __always_inline const struct latch_kind *kind_of(void *ctx, const struct site *site)
{
	__u32 function = site->function;
	struct latch_kinds *of = bpf_map_lookup_elem(&kinds, &function);
	__u64 number;

	if (!of)
		return NULL;
	if (of->count <= 1)
		return &of->kinds[0];
	if (!value_at(ctx, &site->kind, &number))
		return NULL;
	for (int i = 0; i < MAX_KINDS && i < of->count; i++)
		if (of->kinds[i].number == number)
			return &of->kinds[i];
	return NULL;
}

/* Fills in the key of a wait that begins here; returns false if the latch cannot be identified. */
static __always_inline bool identify(void *ctx, const struct site *site, __u64 latch,
				     struct callsite_key *key)
{
	const struct latch_kind *kind = kind_of(ctx, site);
	struct latch_key *k = &key->latch;

	if (!kind)
		return false;
	k->mode = kind->mode;
	k->function = site->function;
	k->identity = kind->identity;
	find_callsite(ctx, site, key);
	switch (kind->identity) {
	case IDENTITY_LATCH_ID:
		return !bpf_probe_read_user(&k->id, 4, (void *)(latch + kind->id_offset));
	case IDENTITY_CREATED:
		if (bpf_probe_read_user(&k->id, 8, (void *)(latch + kind->id_offset)) ||
		    bpf_probe_read_user(&k->line, 4, (void *)(latch + kind->line_offset)))
			return false;
		k->line &= kind->line_mask;
		return true;
	}
	if (is_static(latch)) {
		k->identity = IDENTITY_STATIC;
		k->id = latch;
		return true;
	}
	k->id = psi_offset ? psi_class(latch + psi_offset) : 0;
	k->identity = IDENTITY_PSI_CLASS;
	if (!k->id) {
		k->identity = IDENTITY_CALLER;
		k->id = key->address;
	}
	return true;
}
