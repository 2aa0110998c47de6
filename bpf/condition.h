/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Branches that end a wait only if they go one way, decided from the saved registers.
 */
#pragma once

#include "latch.h"
#include "registers.h"

static __always_inline bool x86_condition(__u8 code, __u64 flags)
{
	bool carry = flags & 1, parity = flags & 4, zero = flags & 0x40, sign = flags & 0x80;
	bool overflow = flags & 0x800, holds;

	switch (code >> 1) {
	case 0:
		holds = overflow;
		break;
	case 1:
		holds = carry;
		break;
	case 2:
		holds = zero;
		break;
	case 3:
		holds = carry || zero;
		break;
	case 4:
		holds = sign;
		break;
	case 5:
		holds = parity;
		break;
	case 6:
		holds = sign != overflow;
		break;
	default:
		holds = zero || sign != overflow;
	}
	return holds != (code & 1);
}

static __always_inline bool a64_condition(__u8 code, __u64 pstate)
{
	bool n = pstate >> 31 & 1, z = pstate >> 30 & 1, c = pstate >> 29 & 1, v = pstate >> 28 & 1;
	bool holds;

	switch (code >> 1) {
	case 0:
		holds = z;
		break;
	case 1:
		holds = c;
		break;
	case 2:
		holds = n;
		break;
	case 3:
		holds = v;
		break;
	case 4:
		holds = c && !z;
		break;
	case 5:
		holds = n == v;
		break;
	case 6:
		holds = !z && n == v;
		break;
	default:
		return true;
	}
	return holds != (code & 1);
}

/* Whether the branch at this site goes the way that ends the wait. */
static __always_inline bool ends_here(void *ctx, const struct condition *c)
{
	__u64 value;

	if (c->kind == CONDITION_NONE)
		return true;
	value = saved_register(ctx, c->reg);
	switch (c->kind) {
	case CONDITION_X86:
		return x86_condition(c->code, value) == c->ends_when;
	case CONDITION_A64:
		return a64_condition(c->code, value) == c->ends_when;
	case CONDITION_ZERO:
		return ((c->wide ? value : (__u32)value) == 0) == c->ends_when;
	default:
		return (value >> (c->code & 63) & 1) == c->ends_when;
	}
}
