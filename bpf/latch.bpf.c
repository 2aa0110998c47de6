// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Latch waits: uprobes show when a thread began and ended waiting for a latch, and futex
 * tracepoints how much of that time it slept. A sleep in the C library's locks is a separate wait
 * (library.h). Each finished wait is added to its latch's histogram here; no event leaves the
 * kernel.
 *
 * A wait's end can be certain (ROLE_END) or only probable (ROLE_MAYBE_END, if the code then retries
 * through its hot path, which must not be probed). In the second case the wait stays open with its
 * probable end noted, until something shows that the thread has moved on.
 */
#include "latch.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "registers.h"
#include "threads.h"

char LICENSE[] SEC("license") = "GPL";

/* A retry follows a probable end within this time: the hot path between them takes tens of
 * nanoseconds, the two probes a few hundred to two thousand. */
#define REOPEN_NS 3000

/* The most frames above the wait function that are skipped to find the call site. */
#define MAX_FRAMES 4

#define FUTEX_CMD_MASK	  0x7f
#define FUTEX_WAIT	  0
#define FUTEX_WAIT_BITSET 9
/* The number of arguments of the kernel's function; its result follows them. */
#define FUTEX_WAIT_ARGUMENTS 5
#define EAGAIN		     11

/* "wait/syn", little endian: the beginning of the name of every performance_schema class of
 * interest. */
#define PSI_NAME_PREFIX 0x6e79732f74696177ULL

const volatile struct vocabulary vocabulary;

const volatile __u32 target_tgid;
/* Byte offset of the instruction pointer in the saved registers. */
const volatile __u32 ip_register;
/* The server's code. */
const volatile __u64 text_begin;
const volatile __u64 text_end;
/* The server's .data and .bss. */
const volatile __u64 static_begin;
const volatile __u64 static_end;
/* performance_schema: the distance from a word-sized latch to its instance pointer (0: such latches
 * have none), from that to its class pointer, and from the class to its name. */
const volatile __s32 psi_offset;
const volatile __u32 psi_class_offset;
const volatile __u32 psi_name_offset;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SITES);
	__type(key, __u32);
	__type(value, struct site);
} sites SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_FUNCTIONS);
	__type(key, __u32);
	__type(value, struct latch_kinds);
} kinds SEC(".maps");

/* The index of a site by its address, for kernels without attach cookies. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SITES);
	__type(key, __u64);
	__type(value, __u32);
} site_at SEC(".maps");

/* Return addresses in code that many latches share; for these, the actual call site is one frame
 * up. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WRAPPERS);
	__type(key, __u64);
	__type(value, __u8);
} wrappers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LATCHES);
	__type(key, struct latch_key);
	__type(value, struct waits);
} latches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLSITES);
	__type(key, struct callsite_key);
	__type(value, struct callsite_waits);
} callsites SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_HITS);
	__type(key, __u32);
	__type(value, struct hits);
} hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOST_CAUSES);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* The upper bounds of the buckets, in nanoseconds; user space owns them and fills them in. */
const volatile __u64 bucket_bounds[BUCKETS - 1];

static const struct waits no_waits;
static const struct callsite_waits no_callsite_waits;
static const struct wait no_wait;

static __always_inline void count(void *map, __u32 index)
{
	__u64 *n = bpf_map_lookup_elem(map, &index);

	if (n)
		*n += 1;
}

/* Counts a hit. */
static __always_inline struct hits *hit(__u32 index)
{
	struct hits *h = bpf_map_lookup_elem(&hits, &index);

	if (h)
		h->count += 1;
	return h;
}

/* Whether this hit is one of those that are timed. */
static __always_inline bool is_timed(const struct hits *h)
{
	return h && h->count % TIMED_HITS == 0;
}

/* To be called last, with the time at which the program began; 0 if it is not known. */
static __always_inline void add_time(struct hits *h, __u64 begin_ns)
{
	if (begin_ns && is_timed(h))
		h->timed_ns += bpf_ktime_get_ns() - begin_ns;
}

/* The number of bounds below ns, by binary search: five steps for 24 bounds. */
static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 low = 0;

	for (__u32 step = 16; step; step >>= 1) {
		__u32 probe = low + step - 1;

		if (probe < BUCKETS - 1 && bucket_bounds[probe] < ns)
			low += step;
	}
	return low;
}

static __always_inline void add_callsite(const struct callsite_key *key, __u64 ns)
{
	struct callsite_waits *at = bpf_map_lookup_elem(&callsites, key);

	if (!at) {
		bpf_map_update_elem(&callsites, key, &no_callsite_waits, BPF_NOEXIST);
		at = bpf_map_lookup_elem(&callsites, key);
	}
	if (!at) {
		count(&lost, LOST_CALLSITES_FULL);
		return;
	}
	__sync_fetch_and_add(&at->count, 1);
	__sync_fetch_and_add(&at->sum_ns, ns);
}

/* Adds a wait of ns to its latch; returns false if there is no room for it. The time asleep is
 * known only if the wait was watched. */
static __always_inline bool add_wait(const struct callsite_key *callsite, __u64 latch, __u64 ns,
				     bool is_watched, __u64 sleep_ns, __u32 sleeps)
{
	struct latch_key key = callsite->latch;
	struct waits *total = bpf_map_lookup_elem(&latches, &key);
	__u32 bucket = bucket_of(ns);

	if (!total) {
		bpf_map_update_elem(&latches, &key, &no_waits, BPF_NOEXIST);
		total = bpf_map_lookup_elem(&latches, &key);
	}
	if (!total) {
		count(&lost, LOST_LATCHES_FULL);
		return false;
	}
	__sync_fetch_and_add(&total->sum_ns, ns);
	if (is_watched) {
		__sync_fetch_and_add(&total->watched, 1);
		__sync_fetch_and_add(&total->watched_ns, ns);
	}
	if (is_watched && sleeps) {
		__sync_fetch_and_add(&total->sleep_ns, sleep_ns);
		__sync_fetch_and_add(&total->sleeps, sleeps);
		__sync_fetch_and_add(&total->slept, 1);
	}
	if (bucket < BUCKETS)
		__sync_fetch_and_add(&total->buckets[bucket], 1);
	/* Checked again after the store, so that the larger of two racing maxima stays. */
	for (int i = 0; i < 4 && *(volatile __u64 *)&total->max_ns < ns; i++)
		*(volatile __u64 *)&total->max_ns = ns;
	total->example = latch;
	add_callsite(callsite, ns);
	return true;
}

#include "handoff.h"
#include "page.h"

/* Notes which page the thread waited for, if any, while the page is certain to be the same. */
static __always_inline void note_page(struct wait *w)
{
	struct latch_key *key = &w->key.latch;
	bool is_bare = key->identity == IDENTITY_CALLER;

	if (!page_layout.is_known || w->is_page)
		return;
	/* A latch with another identity is not a page's, unless its kind of latch has a flag for
	 * pages. */
	if (page_layout.flag ? key->identity != IDENTITY_CREATED : !is_bare)
		return;
	if (!may_be_page(w->latch))
		return;
	w->is_page = page_of(w->latch, &w->page);
	if (is_bare) {
		/* The page identifies the latch better than the waiting code does. */
		if (w->is_page) {
			key->identity = IDENTITY_PAGE;
			key->id = 0;
		}
	} else if (!w->is_page) {
		w->page = other_pages;
		w->is_page = true;
	}
}

/* How many times the futex programs were switched on or off. */
static __always_inline __u32 futex_switches(void)
{
	__u32 library = LIBRARY_FUNCTION;
	struct attachment *a = bpf_map_lookup_elem(&attachments, &library);

	return a ? a->switches : 0;
}

static __always_inline bool futex_programs_rest(void)
{
	__u32 library = LIBRARY_FUNCTION;
	struct attachment *a = bpf_map_lookup_elem(&attachments, &library);

	return a && a->rests;
}

/* Adds the thread's wait, which ended at end_ns, to its latch, and leaves the thread without a
 * wait. */
static __always_inline void finish(struct wait *w, __u64 end_ns)
{
	__u64 ns = end_ns > w->begin_ns ? end_ns - w->begin_ns : 0;
	bool is_watched = w->switches % 2 && w->switches == futex_switches();

	if (add_wait(&w->key, w->latch, ns, is_watched, w->sleep_ns, w->sleeps) && w->is_page) {
		w->page.function = w->key.latch.function;
		add_page_wait(&w->page, ns);
	}
	add_handoff(&w->key.latch, w->begin_place, w->waker_place, w->end_place, ns);
	w->latch = 0;
}

/* Ends the thread's wait, because the thread was seen doing something else. */
static __always_inline void move_on(struct wait *w)
{
	if (!w->latch)
		return;
	if (w->end_ns)
		finish(w, w->end_ns);
	else
		count(&lost, LOST_UNFINISHED);
	w->latch = 0;
}

static __always_inline bool value_at(void *ctx, const struct place *place, __u64 *value)
{
	__u64 reg;

	if (place->kind == 2) {
		*value = (__u64)place->reg << 32 | (__u32)place->displacement;
		return true;
	}
	reg = saved_register(ctx, place->reg);
	if (place->kind == 1) {
		*value = reg + place->displacement;
		return true;
	}
	*value = 0;
	if (place->kind == 4)
		return !bpf_probe_read_user(value, 4, (void *)(reg + place->displacement));
	if (place->kind == 8)
		return !bpf_probe_read_user(value, 8, (void *)(reg + place->displacement));
	return false;
}

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

/* arm64 code may sign its return addresses, in bits that no address of a program uses. */
static __always_inline __u64 unsigned_address(__u64 address)
{
	return address & ((1ULL << 48) - 1);
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
	if (!value_at(ctx, &site->file, &key->where) || !value_at(ctx, &site->line, &key->line)) {
		key->where = caller(ctx, site);
		key->line = 0;
	}
	/* A line number fills half a register; the caller need not define the other half. */
	key->line = (__u32)key->line;
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
	if (latch >= static_begin && latch < static_end) {
		k->identity = IDENTITY_STATIC;
		k->id = latch;
		return true;
	}
	k->id = psi_offset ? psi_class(latch + psi_offset) : 0;
	k->identity = IDENTITY_PSI_CLASS;
	if (!k->id) {
		k->identity = IDENTITY_CALLER;
		k->id = key->where;
	}
	return true;
}

static __always_inline __u32 generation(__u32 function)
{
	struct attachment *a = bpf_map_lookup_elem(&attachments, &function);

	return a ? a->generation : 0;
}

static __always_inline bool by_turns(__u32 function)
{
	struct attachment *a = bpf_map_lookup_elem(&attachments, &function);

	return a && a->by_turns;
}

/* The thread's state. A wait whose end may have gone unseen, because its probes were off meanwhile,
 * is dropped. */
static __always_inline struct wait *thread_wait(void)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct wait *w = bpf_map_lookup_elem(&threads, &tid);

	if (w && w->latch && !w->end_ns && w->generation != generation(w->key.latch.function)) {
		count(&lost, LOST_CUT_OFF);
		w->latch = 0;
	}
	return w;
}

static __always_inline struct wait *new_thread(void)
{
	__u32 tid = bpf_get_current_pid_tgid();

	bpf_map_update_elem(&threads, &tid, &no_wait, BPF_NOEXIST);
	return bpf_map_lookup_elem(&threads, &tid);
}

/* Whether this beginning belongs to the wait that is already open. */
static __always_inline bool goes_on(struct wait *w, const struct site *site, __u64 latch, __u64 now)
{
	if (w->latch != latch)
		return false;
	if (w->key.latch.function != site->function)
		/* The function is called by another wait function, whose wait it is. */
		return !w->end_ns;
	if (site->role != ROLE_BEGIN_AGAIN)
		return false;
	if (w->end_ns && now - w->end_ns > REOPEN_NS)
		return false;
	w->end_ns = 0;
	return true;
}

static __always_inline void begin(void *ctx, const struct site *site, __u64 now)
{
	struct wait *w = thread_wait();
	__u64 latch;

	if (!value_at(ctx, &site->latch, &latch) || !latch) {
		count(&lost, LOST_UNREADABLE);
		return;
	}
	if (!w)
		w = new_thread();
	if (!w) {
		count(&lost, LOST_THREADS_FULL);
		return;
	}
	if (goes_on(w, site, latch, now))
		return;
	move_on(w);
	__builtin_memset(w, 0, sizeof(*w));
	if (!identify(ctx, site, latch, &w->key)) {
		count(&lost, LOST_UNREADABLE);
		return;
	}
	w->generation = generation(site->function);
	w->switches = futex_switches();
	w->begin_place = place_here();
	w->begin_ns = now;
	w->latch = latch;
}

static __always_inline void end(void *ctx, const struct site *site, __u64 now)
{
	struct wait *w = thread_wait();
	__u64 latch;

	if (!ends_here(ctx, &site->condition))
		return;
	if (!w || !w->latch) {
		if (!by_turns(site->function))
			count(&lost, LOST_NO_BEGIN);
		return;
	}
	/* The end of an inner wait function, or of a wait for another latch, is not the end of this
	 * wait. */
	if (w->key.latch.function != site->function)
		return;
	if (site->latch.kind && !value_at(ctx, &site->latch, &latch)) {
		count(&lost, LOST_UNREADABLE);
		return;
	}
	if (site->latch.kind && latch != w->latch)
		return;
	/* The open wait has already ended, so this end is another wait's, whose beginning was not
	 * seen. */
	if (w->end_ns) {
		if (!by_turns(site->function))
			count(&lost, LOST_NO_BEGIN);
		return;
	}
	note_page(w);
	w->end_place = place_here();
	if (site->role == ROLE_MAYBE_END)
		w->end_ns = now;
	else
		finish(w, now);
}

static __always_inline bool is_target(void)
{
	return bpf_get_current_pid_tgid() >> 32 == target_tgid;
}

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

static __always_inline int at_site(void *ctx)
{
	struct site *site;
	struct hits *h;
	__u32 index;
	__u64 now;

	if (!is_target())
		return 0;
	now = bpf_ktime_get_ns();
	site = site_here(ctx, &index);
	if (!site) {
		count(&lost, LOST_NO_SITE);
		return 0;
	}
	h = hit(site->probe);
	if (site->role <= ROLE_BEGIN_AGAIN)
		begin(ctx, site, now);
	else
		end(ctx, site, now);
	add_time(h, now);
	return 0;
}

SEC("uprobe.multi")
int latch_sites(void *ctx)
{
	return at_site(ctx);
}

SEC("uprobe.multi")
int latch_returns(void *ctx)
{
	return at_site(ctx);
}

/* The same for kernels without uprobe_multi, attached site by site. */
SEC("uprobe")
int latch_site(void *ctx)
{
	return at_site(ctx);
}

SEC("uretprobe")
int latch_return(void *ctx)
{
	return at_site(ctx);
}

#include "library.h"

static __always_inline bool is_wait(__u64 op)
{
	op &= FUTEX_CMD_MASK;
	return op == FUTEX_WAIT || op == FUTEX_WAIT_BITSET;
}

/* Whether the word that a thread sleeps on is part of the latch that it waits for. */
static __always_inline bool is_of_latch(const struct wait *w, __u64 word)
{
	return word - w->latch < sizeof(__u64);
}

static __always_inline void fall_asleep(__u64 word, __u64 op)
{
	struct wait *w = thread_wait();
	bool is_waiting;

	if (!w)
		w = new_thread();
	if (!w) {
		count(&lost, LOST_THREADS_FULL);
		return;
	}
	if (w->latch && w->end_ns)
		move_on(w);
	w->sleep_generation = generation(LIBRARY_FUNCTION);
	is_waiting = w->latch;
	if (is_waiting) {
		w->sleep_begin_ns = bpf_ktime_get_ns();
		w->sleep_word = word;
	}
	/* InnoDB sleeps for its latches on their words or in condition variables. Meanwhile it may
	 * have to wait for mutexes too. */
	if (is_waiting && ((op & FUTEX_CMD_MASK) != FUTEX_WAIT || is_of_latch(w, word)))
		return;
	begin_library_wait(&w->library, word, op, is_waiting);
}

static __always_inline void wake_up(__s64 ret)
{
	struct wait *w = thread_wait();
	/* Otherwise the word had changed before the thread could sleep. */
	bool slept = ret != -EAGAIN;
	__u64 now;

	if (!w)
		return;
	if (w->sleep_generation != generation(LIBRARY_FUNCTION)) {
		/* These programs were off meanwhile, so this may be the end of another sleep. */
		if (w->library.word)
			count(&lost, LOST_CUT_OFF);
		w->library.word = 0;
		w->sleep_begin_ns = 0;
		return;
	}
	now = bpf_ktime_get_ns();
	if (w->latch && w->sleep_begin_ns) {
		w->sleep_ns += now - w->sleep_begin_ns;
		if (slept)
			w->waker_place = waker_place(w->sleep_word, w->sleep_begin_ns);
		w->sleep_begin_ns = 0;
		w->sleeps += slept;
	}
	if (w->library.word) {
		if (slept)
			end_library_wait(&w->library, now);
		w->library.word = 0;
	}
}

/* A thread enters a futex call, or leaves it with `ret`. */
static __always_inline int futex_begins(__u64 word, __u64 op)
{
	struct hits *h = hit(HIT_FUTEX_ENTER);
	__u64 now = is_timed(h) ? bpf_ktime_get_ns() : 0;

	if (is_wait(op))
		fall_asleep(word, op);
	else if (has_places && is_wake(op))
		note_wake(word);
	add_time(h, now);
	return 0;
}

static __always_inline int futex_ends(__s64 ret)
{
	struct hits *h = hit(HIT_FUTEX_EXIT);
	__u64 now = is_timed(h) ? bpf_ktime_get_ns() : 0;

	wake_up(ret);
	add_time(h, now);
	return 0;
}

/* The kernel's own function for all futex waits. Unlike the system call's tracepoints, it costs
 * only the threads that wait. */
SEC("fentry/futex_wait")
int futex_wait_enter(__u64 *ctx)
{
	__u64 word = 0;

	/* These programs stay attached between turns, because the kernel changes its own code to
	 * attach them. */
	if (!is_target() || futex_switches() % 2 == 0)
		return 0;
	/* Older verifiers refuse to load an argument that points to a number. */
	bpf_probe_read_kernel(&word, sizeof(word), ctx);
	/* The meaning of the function's flags differs between kernels; the system call's operation
	 * does not. */
	return futex_begins(word, user_register(op_register));
}

/* Loaded only if handoffs are counted. */
SEC("fentry/futex_wake")
int futex_wake_enter(__u64 *ctx)
{
	__u64 word = 0;

	if (!is_target() || futex_switches() % 2 == 0)
		return 0;
	bpf_probe_read_kernel(&word, sizeof(word), ctx);
	hit(HIT_FUTEX_WAKE);
	note_wake(word);
	return 0;
}

SEC("fexit/futex_wait")
int futex_wait_exit(__u64 *ctx)
{
	if (!is_target() || futex_programs_rest())
		return 0;
	return futex_ends((__s32)ctx[FUTEX_WAIT_ARGUMENTS]);
}

/* For kernels where that function cannot be traced. */
SEC("tracepoint/syscalls/sys_enter_futex")
int futex_enter(struct sys_enter *ctx)
{
	if (!is_target())
		return 0;
	return futex_begins(ctx->args[0], ctx->args[1]);
}

SEC("tracepoint/syscalls/sys_exit_futex")
int futex_exit(struct sys_exit *ctx)
{
	if (!is_target())
		return 0;
	return futex_ends(ctx->ret);
}

SEC("tracepoint/sched/sched_process_exit")
int thread_exit(void *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct wait *w;

	if (!is_target())
		return 0;
	hit(HIT_THREAD_EXIT);
	w = thread_wait();
	if (w) {
		move_on(w);
		bpf_map_delete_elem(&threads, &tid);
	}
	return 0;
}
