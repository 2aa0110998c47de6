/*
 * InnoDB's latches in MariaDB 10.6 and newer: bare lock words, the functions that wait for them in a
 * futex, the code that creates and takes latches, and tables of instruments and of variables. With
 * TWO_FIRST, a second function waits as the plain mutex does, so that only its name tells them apart.
 */
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>

typedef unsigned int u32;
typedef unsigned long ulong;

long syscall(long number, ...);

/* In no table of exported symbols, as in the distributions' builds. */
#define MANGLED(name) __asm__(name) __attribute__((noinline, visibility("hidden")))
#define INLINE static inline __attribute__((always_inline))

#define WAIT_PRIVATE 0x80
#define WAKE_PRIVATE 0x81
#define HOLDER 0x80000000u

const char server_version[] __attribute__((visibility("default"))) = "11.4.5-MariaDB";
const char version_comment[] __attribute__((visibility("default"))) = "MariaDB Server";

/* Variables. */

struct system_variable {
	int flags;
	const char *name, *comment;
	void *check, *update;
	void *value;
	ulong standard;
};
struct status_variable {
	const char *name;
	void *value;
	int type;
};

/* A latch: performance_schema's instance, the word of its mutex, and its number of readers. */
struct latch {
	void *psi;
	u32 word, readers;
};

ulong srv_n_spin_wait_rounds = 30;
u32 srv_spin_wait_delay = 4;
char innodb_doublewrite = 1;
ulong both_sizes[2];

struct log_system {
	ulong buffer_size;
	u32 latch, latch_readers;
	u32 lsn_lock, unused;
	ulong waits;
} log_sys __attribute__((aligned(64)));
struct log_system after_log __attribute__((aligned(64)));

#define PER_CONNECTION 0x100
struct system_variable variables[] = {
	{4, "sync_spin_loops", "", 0, 0, &srv_n_spin_wait_rounds, 30},
	{2, "spin_wait_delay", "", 0, 0, &srv_spin_wait_delay, 4},
	{1, "doublewrite", "", 0, 0, &innodb_doublewrite, 1},
	{3, "log_buffer_size", "", 0, 0, &log_sys.buffer_size, 16},
	{5, "text", "", 0, 0, &both_sizes, 0},
	{3 | PER_CONNECTION, "own", "", 0, 0, &both_sizes, 0},
	{3, "twice", "", 0, 0, &both_sizes[0], 0},
	{3, "twice", "", 0, 0, &both_sizes[1], 0},
};
struct status_variable status[] = {{"log_waits", &log_sys.waits, 0}};

/* Instruments. */

struct instrument {
	u32 *key;
	const char *name;
	u32 flags;
};
extern u32 dict_key, lock_key, purge_key, tree_key, pool_key, twice_key;
struct instrument rwlocks[] = {{&dict_key, "dict_operation_lock", 0},
			       {&lock_key, "lock_latch", 0x10},
			       {&purge_key, "trx_purge_latch", 0},
			       {&tree_key, "index_tree_rw_lock", 0x10},
			       {&twice_key, "log_latch", 0}};
struct instrument mutexes[] = {{&pool_key, "buf_pool_mutex", 0}};
const char event_of_sxlocks[] = "wait/synch/sxlock/innodb/";

struct psi {
	void *(*init_rwlock)(u32 key, const void *latch);
	void *(*init_mutex)(u32 key, const void *mutex);
	void (*add)(const char *category, struct instrument *table, int count);
};
struct psi *volatile psi;

/* The functions that wait. */

INLINE void sleep_on(volatile u32 *word, u32 value)
{
	syscall(SYS_futex, word, WAIT_PRIVATE, value, 0, 0, 0);
}

INLINE void take(volatile u32 *word)
{
	u32 now = 1 + __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);

	for (;;) {
		if (now & HOLDER) {
			sleep_on(word, now);
			now = *word;
		} else if (__atomic_compare_exchange_n(word, &now, now | HOLDER, 0,
						       __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
			return;
		}
	}
}

INLINE void spin(volatile u32 *word)
{
	ulong rounds = *(volatile ulong *)&srv_n_spin_wait_rounds;

	do {
#if defined(__x86_64__)
		__asm__ volatile("pause");
#else
		__asm__ volatile("isb");
#endif
		if (!*word)
			break;
	} while (--rounds);
}

void mutex_wait(volatile u32 *word) MANGLED("_ZN14srw_mutex_implILb0EE13wait_and_lockEv");
void spin_mutex_wait(volatile u32 *word) MANGLED("_ZN14srw_mutex_implILb1EE13wait_and_lockEv");
void read_wait(volatile u32 *word) MANGLED("_ZN14ssux_lock_implILb0EE7rd_waitEv");
void spin_read_wait(volatile u32 *word) MANGLED("_ZN14ssux_lock_implILb1EE7rd_waitEv");
void write_wait(volatile u32 *word, u32 now) MANGLED("_ZN14ssux_lock_implILb0EE7wr_waitEj");
void spin_write_wait(volatile u32 *word, u32 now) MANGLED("_ZN14ssux_lock_implILb1EE7wr_waitEj");

void mutex_wait(volatile u32 *word)
{
	take(word);
}

void spin_mutex_wait(volatile u32 *word)
{
	spin(word);
	take(word);
}

INLINE void admit_readers(volatile u32 *word)
{
	__atomic_fetch_add(&word[1], 1, __ATOMIC_ACQUIRE);
	*word = 0;
	syscall(SYS_futex, word, WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

void read_wait(volatile u32 *word)
{
	take(word);
	admit_readers(word);
}

void spin_read_wait(volatile u32 *word)
{
	spin(word);
	take(word);
	admit_readers(word);
}

INLINE void wait_for_readers(volatile u32 *readers, u32 now)
{
	do {
		sleep_on(readers, now);
		now = *readers;
	} while (now != HOLDER);
}

void write_wait(volatile u32 *word, u32 now)
{
	wait_for_readers(&word[1], now);
}

void spin_write_wait(volatile u32 *word, u32 now)
{
	spin(&word[1]);
	wait_for_readers(&word[1], now);
}

#ifdef TWO_FIRST
void mutex_wait_too(volatile u32 *word) MANGLED("_Z14mutex_wait_tooPj");

void mutex_wait_too(volatile u32 *word)
{
	take(word);
	word[1] = 1;
}
#endif

/* A lock function with a wait of its own, and a semaphore: neither is a function that only waits. */
void lock_and_wait(volatile u32 *word) MANGLED("_Z13lock_and_waitPj");
void semaphore_wait(volatile u32 *word) MANGLED("_Z14semaphore_waitPj");

void lock_and_wait(volatile u32 *word)
{
	if (__atomic_exchange_n(&word[1], 1, __ATOMIC_ACQUIRE))
		mutex_wait(word);
	take(word);
}

void semaphore_wait(volatile u32 *word)
{
	while (!*word)
		sleep_on(word, 0);
}

/* Latches in static data, and in objects. */

struct dict_system {
	struct latch operation;
} dict_sys;
struct lock_system {
	struct latch latch;
} lock_sys;
struct purge_system {
	struct latch latch;
	char padding[120 - 8];
	u32 end_latch, end_readers;
} purge_sys;
struct index {
	ulong before[5];
	struct latch tree;
};
struct pool {
	ulong before;
	pthread_mutex_t mutex;
} buf_pool;
struct latch with_two_keys;

void init_latch(struct latch *latch, u32 key) MANGLED("_Z10init_latchP5latchj");
void init_dict(struct dict_system *dict) MANGLED("_ZN8dict_sys4initEv");
void init_index(struct index *index) MANGLED("_Z10init_indexP5index");
void init_all(struct index *index) MANGLED("_Z8init_allP5index");
void wait_for_all(struct index *index) MANGLED("_Z12wait_for_allP5index");
void shared_lock(struct index *index) MANGLED("_ZN5mtr_t6s_lockEP5index");
void user(struct index *index) MANGLED("_Z4userP5index");
void register_all(void) MANGLED("_Z12register_allv");

/* Through a caller that knows the object. */
void init_dict(struct dict_system *dict)
{
	dict->operation.word = 0;
	dict->operation.psi = psi->init_rwlock(dict_key, &dict->operation);
}

void init_index(struct index *index)
{
	index->tree.psi = psi->init_rwlock(tree_key, &index->tree);
	index->tree.word = 0;
}

void init_all(struct index *index)
{
	init_dict(&dict_sys);
	init_index(index);
	lock_sys.latch.psi = psi->init_rwlock(lock_key, &lock_sys.latch);
	purge_sys.latch.psi = psi->init_rwlock(purge_key, &purge_sys.latch);
	with_two_keys.psi = psi->init_rwlock(lock_key, &with_two_keys);
	with_two_keys.psi = psi->init_rwlock(purge_key, &with_two_keys);
	psi->init_mutex(pool_key, &buf_pool.mutex);
	pthread_mutex_init(&buf_pool.mutex, NULL);
}

void wait_for_all(struct index *index)
{
	read_wait(&log_sys.latch);
	mutex_wait(&log_sys.lsn_lock);
	mutex_wait(&after_log.lsn_lock);
	spin_read_wait(&purge_sys.end_latch);
	write_wait(&dict_sys.operation.word, index->before[0]);
	spin_write_wait(&lock_sys.latch.word, index->before[0]);
	spin_mutex_wait(&index->tree.word);
	lock_and_wait(&index->tree.word);
	semaphore_wait(&index->tree.word);
}

/* Waiters for all kinds of latches pass through this one. */
void shared_lock(struct index *index)
{
	index->before[1]++;
	read_wait(&index->tree.word);
	index->before[2]++;
}

void user(struct index *index)
{
	shared_lock(index);
	index->before[3]++;
}

void register_all(void)
{
	psi->add("innodb", rwlocks, sizeof rwlocks / sizeof *rwlocks);
	psi->add("innodb", mutexes, sizeof mutexes / sizeof *mutexes);
	psi->add(event_of_sxlocks, 0, 0);
	psi->add(version_comment, 0, 0);
}

void start(struct index *index)
{
	init_all(index);
	wait_for_all(index);
	user(index);
	register_all();
#ifdef TWO_FIRST
	mutex_wait_too(&log_sys.lsn_lock);
#endif
	both_sizes[0] = variables[0].standard + status[0].type;
}
