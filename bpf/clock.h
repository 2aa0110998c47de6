/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The clocks of CPU samples serve for glances too, because an interrupt costs more than a program.
 * The programs that measure waits own this map, and those that sample CPU time share it.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>

/* The program that glances at threads, while that is wanted. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} at_clock SEC(".maps");
