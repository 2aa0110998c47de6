/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What kernel and user space agree on about samples of hardware events.
 */
#pragma once

#include "latch.h"

/* At least as many entries as the map of samples holds; user space makes it larger. */
#define MIN_EVENT_SAMPLES 4096

/* An instruction, and the event as user space has asked for it. */
struct event_key {
	/* Addresses of the kernel have their highest bit set. */
	__u64 address;
	__u64 config;
	__u64 config1;
	__u32 kind;
	__u32 unused;
};

/* Carries what no map does into the object's BTF, from which user space gets it. */
struct event_vocabulary {
	struct hits hits;
	struct event_key key;
};
