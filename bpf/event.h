/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between kernel and user space for samples of hardware events.
 */
#pragma once

#include "latch.h"

/* The minimum capacity of the map of samples; user space makes it larger. */
#define MIN_EVENT_SAMPLES 4096

/* Why a sample is missing. */
enum event_lost {
	/* More addresses than the map holds. */
	EVENT_LOST_FULL,
	/* The place in the map was being changed by what the sample interrupted. */
	EVENT_LOST_BUSY,
	EVENT_LOST_CAUSES,
};

/* An instruction, and the event as user space requested it. */
struct event_key {
	/* Kernel addresses have their highest bit set. */
	__u64 address;
	__u64 config;
	__u64 config1;
	__u32 kind;
	__u32 unused;
};

/* Puts into the object's BTF what no map contains, so that user space can read it there. */
struct event_vocabulary {
	struct hits hits;
	struct event_key key;
	enum event_lost lost;
};
