/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The instrumentation of performance_schema: finds the class of a latch through the pointer to its
 * instance.
 */
#pragma once

#include "latch.h"
#include <bpf/bpf_helpers.h>

/* "wait/syn", little endian: the beginning of the name of every performance_schema class of
 * interest. */
#define PSI_NAME_PREFIX 0x6e79732f74696177ULL

/* The offset of the kind in the names of performance_schema's classes, after "wait/synch/". */
#define PSI_KIND_AT 11

/* The distance from a word-sized latch to its instance pointer (0: such latches have none), from
 * that to its class pointer, and from the class to its name. */
const volatile __s32 psi_offset;
const volatile __u32 psi_class_offset;
const volatile __u32 psi_name_offset;

/* Where the server's instrumented objects store the pointer to their instance. */
const volatile struct psi_pointer psi_pointers[MAX_PSI_POINTERS];

/* The performance_schema class of the instance to which the pointer at this address leads; 0 if
 * there is none. The class's name shows whether it is one. */
static __always_inline __u64 psi_class(__u64 at)
{
	__u64 psi = 0, class = 0, prefix = 0;

	if (bpf_probe_read_user(&psi, 8, (void *)at) || !psi ||
	    bpf_probe_read_user(&class, 8, (void *)(psi + psi_class_offset)) ||
	    bpf_probe_read_user(&prefix, 8, (void *)(class + psi_name_offset)))
		return 0;
	return prefix == PSI_NAME_PREFIX ? class : 0;
}

/* Where the pointer is in an object in which threads sleep on this word. */
static __always_inline __u64 pointer_at(const volatile struct psi_pointer *pointer, __u64 word)
{
	return (word & ~7ULL) + pointer->offset;
}

/* The class of the instrumented object that contains a futex word; 0 if it has none. An instance of
 * the right kind at the right distance is proof, because objects do not overlap. A rw_pr_lock_t is
 * larger than what may follow a mutex without an instance, so the code must also be known to lock
 * one. */
static __always_inline __u64 psi_class_of_word(__u64 word, bool plain_wait, bool is_prlock)
{
	for (int i = 0; i < MAX_PSI_POINTERS; i++) {
		const volatile struct psi_pointer *pointer = &psi_pointers[i];
		__u64 class;
		char kind = 0;

		if (!pointer->kind || pointer->plain_wait != plain_wait ||
		    (pointer->is_prlock && !is_prlock))
			continue;
		class = psi_class(pointer_at(pointer, word));
		if (!class ||
		    bpf_probe_read_user(&kind, 1, (void *)(class + psi_name_offset + PSI_KIND_AT)))
			continue;
		if (kind == pointer->kind)
			return class;
	}
	return 0;
}
