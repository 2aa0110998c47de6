/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The call site of a wait: the code that called the wait function.
 */
#pragma once

#include "latch.h"
#include "location.h"
#include <bpf/bpf_helpers.h>

/* The server's code. */
const volatile __u64 text_begin;
const volatile __u64 text_end;

/* The most frames above the wait function that are skipped to find the call site. */
#define MAX_FRAMES 4

/* Return addresses in code that many latches share; for these, the actual call site is one frame
 * up. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WRAPPERS);
	__type(key, __u64);
	__type(value, __u8);
} wrappers SEC(".maps");

/* Addresses of programs have at most this many bits. */
#define ADDRESS_BITS 48

/* arm64 code may sign its return addresses, in bits that no address of a program uses. */
static __always_inline __u64 unsigned_address(__u64 address)
{
	return address & ((1ULL << ADDRESS_BITS) - 1);
}

/* The return address of the code that waits, skipping frames of code that all latches share. */
static __always_inline __u64 caller(void *ctx, const struct site *site)
{
	__u64 frame, address = 0;

	if (!value_at(ctx, &site->caller, &address))
		return 0;
	address = unsigned_address(address);
	if (!value_at(ctx, &site->frame, &frame))
		return address;
	for (int i = 0; i < MAX_FRAMES && bpf_map_lookup_elem(&wrappers, &address); i++) {
		/* A saved frame pointer and a return address, in this order on both x86_64 and
		 * aarch64. */
		__u64 record[2];

		if (bpf_probe_read_user(record, sizeof(record), (void *)frame))
			break;
		record[1] = unsigned_address(record[1]);
		/* Code without a frame pointer left something else in the register. */
		if (record[1] < text_begin || record[1] >= text_end)
			break;
		frame = record[0];
		address = record[1];
	}
	return address;
}

/* Finds the code that waits: the source line that the server passes, or else the return address. */
static __always_inline void find_callsite(void *ctx, const struct site *site,
					  struct callsite_key *key)
{
	if (!value_at(ctx, &site->file, &key->address) || !value_at(ctx, &site->line, &key->line)) {
		key->address = caller(ctx, site);
		key->line = 0;
	}
	/* A line number fills half a register; the caller need not define the other half. */
	key->line = (__u32)key->line;
}
