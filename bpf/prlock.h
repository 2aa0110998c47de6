/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The server's rw_pr_lock_t: a read-write lock of its own, made of a mutex and a condition
 * variable. Metadata locks contain one.
 */
#pragma once

#include "latch.h"
#include "psi.h"
#include <bpf/bpf_helpers.h>

/* The server's functions that lock a rw_pr_lock_t. */
const volatile struct code_range prlock_functions[MAX_PRLOCK_FUNCTIONS];

/* Offsets from the beginning of a metadata lock, where its key is: of the pointer to the instance
 * of its rw_pr_lock_t, and of the key's text. */
const volatile __u32 metadata_instance_offset;
const volatile __u32 metadata_text_offset;

/* A key's text consists of the namespace, the schema's name, NUL, other names, NUL. Its bounds: */
#define MIN_METADATA_TEXT   3
#define MAX_METADATA_TEXT   387
#define METADATA_NAMESPACES 32

/* Whether this code locks rw_pr_lock_t's. */
static __always_inline bool is_prlock_function(__u64 address)
{
	for (int i = 0; i < MAX_PRLOCK_FUNCTIONS; i++) {
		if (address >= prlock_functions[i].begin && address < prlock_functions[i].end)
			return true;
	}
	return false;
}

/* Whether a metadata lock's key is here: two lengths that match each other and the text. */
static __always_inline bool is_metadata_key(__u64 key)
{
	__u64 text = key + metadata_text_offset;
	__u16 length = 0, schema_length = 0;
	__u8 namespace = 0, schema_end = 0, end = 0;

	if (bpf_probe_read_user(&length, 2, (void *)key) ||
	    bpf_probe_read_user(&schema_length, 2, (void *)(key + 2)))
		return false;
	if (length < MIN_METADATA_TEXT || length > MAX_METADATA_TEXT ||
	    schema_length + MIN_METADATA_TEXT > length)
		return false;
	if (bpf_probe_read_user(&namespace, 1, (void *)text) ||
	    bpf_probe_read_user(&schema_end, 1, (void *)(text + 1 + schema_length)) ||
	    bpf_probe_read_user(&end, 1, (void *)(text + length - 1)))
		return false;
	return namespace < METADATA_NAMESPACES && !schema_end && !end;
}

/* Whether the rw_pr_lock_t that contains a futex word belongs to a metadata lock. */
static __always_inline bool is_metadata_lock(__u64 word, bool plain_wait)
{
	for (int i = 0; i < MAX_PSI_POINTERS; i++) {
		const volatile struct psi_pointer *pointer = &psi_pointers[i];

		if (pointer->is_prlock && pointer->plain_wait == plain_wait &&
		    is_metadata_key(pointer_at(pointer, word) - metadata_instance_offset))
			return true;
	}
	return false;
}
