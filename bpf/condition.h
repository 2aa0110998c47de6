/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Branches that end a wait only if they go one way, decided from the saved registers.
 */
#pragma once

#include "latch.h"
#include "registers.h"

/* Condition codes come in pairs: an odd code negates the even one before it. */
enum x86_pair {
	X86_PAIR_O,
	X86_PAIR_B,
	X86_PAIR_E,
	X86_PAIR_BE,
	X86_PAIR_S,
	X86_PAIR_P,
	X86_PAIR_L,
	X86_PAIR_LE,
};

enum a64_pair {
	A64_PAIR_EQ,
	A64_PAIR_CS,
	A64_PAIR_MI,
	A64_PAIR_VS,
	A64_PAIR_HI,
	A64_PAIR_GE,
	A64_PAIR_GT,
	/* Both codes mean always. */
	A64_PAIR_AL,
};

/* The flags register. */
enum x86_flag {
	X86_CARRY = 1 << 0,
	X86_PARITY = 1 << 2,
	X86_ZERO = 1 << 6,
	X86_SIGN = 1 << 7,
	X86_OVERFLOW = 1 << 11,
};

/* The condition flags in pstate. */
enum a64_flag {
	A64_OVERFLOW = 1 << 28,
	A64_CARRY = 1 << 29,
	A64_ZERO = 1 << 30,
	A64_NEGATIVE = 1U << 31,
};

static __always_inline bool x86_condition(__u8 code, __u64 flags)
{
	bool carry = flags & X86_CARRY, parity = flags & X86_PARITY, zero = flags & X86_ZERO;
	bool sign = flags & X86_SIGN, overflow = flags & X86_OVERFLOW, holds;

	switch (code >> 1) {
	case X86_PAIR_O:
		holds = overflow;
		break;
	case X86_PAIR_B:
		holds = carry;
		break;
	case X86_PAIR_E:
		holds = zero;
		break;
	case X86_PAIR_BE:
		holds = carry || zero;
		break;
	case X86_PAIR_S:
		holds = sign;
		break;
	case X86_PAIR_P:
		holds = parity;
		break;
	case X86_PAIR_L:
		holds = sign != overflow;
		break;
	default:
		holds = zero || sign != overflow;
	}
	return holds != (code & 1);
}

static __always_inline bool a64_condition(__u8 code, __u64 pstate)
{
	bool n = pstate & A64_NEGATIVE, z = pstate & A64_ZERO;
	bool c = pstate & A64_CARRY, v = pstate & A64_OVERFLOW;
	bool holds;

	switch (code >> 1) {
	case A64_PAIR_EQ:
		holds = z;
		break;
	case A64_PAIR_CS:
		holds = c;
		break;
	case A64_PAIR_MI:
		holds = n;
		break;
	case A64_PAIR_VS:
		holds = v;
		break;
	case A64_PAIR_HI:
		holds = c && !z;
		break;
	case A64_PAIR_GE:
		holds = n == v;
		break;
	case A64_PAIR_GT:
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
