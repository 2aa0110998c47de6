/*
 * How MySQL 8.0 registers InnoDB's latches with performance_schema and creates them, and how its SQL
 * layer creates the C library's locks. Linked with mysql_8_0.c.
 */
#include <pthread.h>
#include <stddef.h>

typedef unsigned long ulint;
typedef unsigned int psi_key;

#define MANGLED(name) __asm__(name) __attribute__((noinline, visibility("default")))

/* Tables of instruments: each key variable with its name. */

struct instrument {
	psi_key *key;
	const char *name;
	unsigned int flags;
	int volatility;
	const char *documentation;
};

#define SXLOCK 0x10

#include "mysql_ids.h"

#define KEY(id, name) extern psi_key name##_key;
IDS(KEY)
extern psi_key fil_space_latch_key, trx_purge_latch_key, index_tree_rw_lock_key;
extern psi_key key_LOCK_status, key_LOCK_log, key_LOCK_relay_log, key_LOCK_grant, key_COND_log;
extern psi_key key_twice;
extern psi_key PFS_NOT_INSTRUMENTED;

#define INSTRUMENT(id, name) {&name##_key, #name, 0, 0, ""},
struct instrument innodb_mutexes[] = {IDS(INSTRUMENT){&key_twice, "one_name", 0, 0, ""},
				      {&key_twice, "another_name", 0, 0, ""}};
struct instrument innodb_rwlocks[] = {{&fil_space_latch_key, "fil_space_latch", SXLOCK, 0, ""},
				      {&trx_purge_latch_key, "trx_purge_latch", 0, 0, ""},
				      {&index_tree_rw_lock_key, "index_tree_rw_lock", SXLOCK, 0, ""}};
struct instrument sql_mutexes[] = {{&key_LOCK_status, "LOCK_status", 0, 0, ""},
				   {&key_LOCK_log, "MYSQL_BIN_LOG::LOCK_log", 0, 0, ""},
				   {&key_LOCK_relay_log, "MYSQL_RELAY_LOG::LOCK_log", 0, 0, ""}};
struct instrument sql_rwlocks[] = {{&key_LOCK_grant, "LOCK_grant", 0, 0, ""}};
struct instrument sql_conds[] = {{&key_COND_log, "MYSQL_BIN_LOG::update_cond", 0, 0, ""}};
const char event_of_sxlocks[] = "wait/synch/sxlock/innodb/";

/* performance_schema, as a table of functions. */

struct psi {
	void (*add)(const char *category, struct instrument *table, int count);
	void *(*init)(psi_key key, const void *lock);
};
struct psi *volatile psi_mutex_service, *volatile psi_rwlock_service, *volatile psi_cond_service;

/* InnoDB's latch ids: one description each. */

struct latch_meta {
	ulint id;
	const char *name;
	ulint level;
	const char *level_name;
	psi_key key;
};
struct latch_meta *volatile latch_metas[64];

struct latch_meta *new_meta(void) MANGLED("_Z8new_metav");
void init_metas(void) MANGLED("_ZL20sync_latch_meta_initv");
void sync_check_init(ulint threads) MANGLED("_Z15sync_check_initm");

struct latch_meta *new_meta(void)
{
	static struct latch_meta storage[64];
	static volatile int used;

	return &storage[used++];
}

static inline __attribute__((always_inline)) void describe(ulint id, const char *name,
							   const psi_key *key)
{
	struct latch_meta *meta = new_meta();

	meta->id = id;
	meta->name = name;
	meta->level = id + 7;
	meta->level_name = "SYNC_LEVEL";
	meta->key = key ? *key : (psi_key)-1;
	latch_metas[id] = meta;
}

enum {
#define NUMBER(id, name) NUMBER_##id,
	IDS(NUMBER) NUMBER_BUF_BLOCK_MUTEX,
	NUMBER_EVENT_MANAGER
};

void init_metas(void)
{
#define DESCRIBE(id, name) describe(NUMBER_##id, #id, &name##_key);
	IDS(DESCRIBE)
	describe(NUMBER_BUF_BLOCK_MUTEX, "BUF_BLOCK_MUTEX", &PFS_NOT_INSTRUMENTED);
	describe(NUMBER_EVENT_MANAGER, "EVENT_MANAGER", NULL);
}

void sync_check_init(ulint threads)
{
	latch_metas[threads % 64] = 0;
	init_metas();
	latch_metas[63] = 0;
}

/* InnoDB's rw-locks: each remembers where it was created. */

struct rw_lock;
/* A function that ends with a jump to an unknown place would not be followed. */
volatile int created;

void rw_lock_create(struct rw_lock *lock, const char *file, ulint line)
    MANGLED("_Z19rw_lock_create_funcP9rw_lock_tPKcm");
void create_hashed(struct rw_lock *lock, const char *file, ulint line)
    MANGLED("_Z13create_hashedP9rw_lock_tPKcm");
void create_latches(struct rw_lock *locks) MANGLED("_Z14create_latchesP9rw_lock_t");
void create_purge(struct rw_lock *lock) MANGLED("_Z12create_purgeP9rw_lock_t");
void create_pages(struct rw_lock *lock) MANGLED("_Z12create_pagesP9rw_lock_t");
void create_other(struct rw_lock *lock) MANGLED("_Z12create_otherP9rw_lock_t");
void create_tables(struct rw_lock *lock) MANGLED("_Z13create_tablesP9rw_lock_t");

static inline __attribute__((always_inline)) void create(struct rw_lock *lock, psi_key key,
							 const char *file, ulint line)
{
	psi_rwlock_service->init(key, lock);
	rw_lock_create(lock, file, line);
}

void create_latches(struct rw_lock *locks)
{
	create(locks, fil_space_latch_key, "/src/innobase/fil/fil0fil.cc", 1101);
}

void create_purge(struct rw_lock *lock)
{
	create(lock, trx_purge_latch_key, "/src/innobase/trx/trx0purge.cc", 245);
}

/* Neither is instrumented: one has a variable that says so, the other a number. */
void create_pages(struct rw_lock *lock)
{
	create(lock, PFS_NOT_INSTRUMENTED, "/src/innobase/buf/buf0buf.cc", 780);
}

void create_other(struct rw_lock *lock)
{
	create(lock, -1, "/src/innobase/gis/gis0sea.cc", 1650);
}

/* Passes on where it is called. */
void create_hashed(struct rw_lock *lock, const char *file, ulint line)
{
	psi_rwlock_service->init(0, lock);
	rw_lock_create(lock, file, line);
	created++;
}

void create_tables(struct rw_lock *lock)
{
	psi_rwlock_service->init(index_tree_rw_lock_key, lock);
	create_hashed(lock, "/src/innobase/dict/dict0dict.cc", 2500);
	created++;
}

/* No key is known of this one. */
void create_unknown(struct rw_lock *lock, psi_key *key) MANGLED("_Z14create_unknownP9rw_lock_tPj");

void create_unknown(struct rw_lock *lock, psi_key *key)
{
	create(lock, *key, "/src/innobase/row/row0row.cc", 9);
}

/* The SQL layer's locks. */

struct sql_mutex {
	pthread_mutex_t mutex;
	void *psi;
};
struct sql_rwlock {
	pthread_rwlock_t rwlock;
	void *psi;
};
struct sql_cond {
	pthread_cond_t cond;
	void *psi;
};

struct bin_log {
	ulint before[5];
	psi_key key;
	struct sql_mutex lock_log;
	struct sql_cond update;
};

static inline __attribute__((always_inline)) void init_mutex(psi_key key, struct sql_mutex *lock)
{
	lock->psi = psi_mutex_service->init(key, &lock->mutex);
	pthread_mutex_init(&lock->mutex, NULL);
}

struct sql_mutex LOCK_status, LOCK_twice, LOCK_relay, LOCK_by_argument, LOCK_by_two;
struct sql_rwlock LOCK_grant;

void init_status(void) MANGLED("_Z11init_statusv");
void init_log(struct bin_log *log) MANGLED("_ZN13MYSQL_BIN_LOGC2Ev");
void use_log(struct bin_log *log) MANGLED("_ZN13MYSQL_BIN_LOG6rotateEv");
void use_both(struct bin_log *log, struct bin_log *other) MANGLED("_Z8use_bothP13MYSQL_BIN_LOGS0_");
void use_instrumented(struct bin_log *log) MANGLED("_Z16use_instrumentedP13MYSQL_BIN_LOG");
struct bin_log *new_log(void) MANGLED("_Z7new_logv");
void init_current(void) MANGLED("_Z12init_currentv");
void use_current(void) MANGLED("_Z11use_currentv");
void init_given(struct sql_mutex *lock, psi_key key) MANGLED("_Z10init_givenP9sql_mutexj");
void init_through(struct sql_mutex *lock, psi_key key) MANGLED("_Z12init_throughP9sql_mutexj");
void init_by_argument(void) MANGLED("_Z16init_by_argumentv");
void register_all(void) MANGLED("_Z12register_allv");

void init_status(void)
{
	init_mutex(key_LOCK_status, &LOCK_status);
	init_mutex(key_LOCK_status, &LOCK_twice);
	init_mutex(key_LOCK_log, &LOCK_twice);
	LOCK_grant.psi = psi_rwlock_service->init(key_LOCK_grant, &LOCK_grant.rwlock);
	pthread_rwlock_init(&LOCK_grant.rwlock, NULL);
}

void init_log(struct bin_log *log)
{
	log->before[0] = 1;
	init_mutex(key_LOCK_log, &log->lock_log);
	log->update.psi = psi_cond_service->init(key_COND_log, &log->update.cond);
	pthread_cond_init(&log->update.cond, NULL);
}

void use_log(struct bin_log *log)
{
	pthread_mutex_lock(&log->lock_log.mutex);
	log->before[1]++;
	pthread_cond_wait(&log->update.cond, &log->lock_log.mutex);
	pthread_mutex_unlock(&log->lock_log.mutex);
	log->before[4]++;
}

/* Two locks, at different offsets. */
void use_both(struct bin_log *log, struct bin_log *other)
{
	pthread_mutex_lock(&log->lock_log.mutex);
	pthread_mutex_lock(&other[1].lock_log.mutex);
	log->before[2]++;
}

/* A mutex, locked by a function of the program's own. */
__attribute__((noinline)) void psi_mutex_lock(struct sql_mutex *lock)
{
	if (!lock->psi)
		pthread_mutex_lock(&lock->mutex);
	lock->psi = 0;
}

void use_instrumented(struct bin_log *log)
{
	psi_mutex_lock(&log->lock_log);
	log->before[3]++;
}

struct bin_log *volatile logs;
struct bin_log *current;

struct bin_log *new_log(void)
{
	return logs++;
}

void init_current(void)
{
	struct bin_log *log = new_log();

	current = log;
	init_mutex(key_LOCK_relay_log, &log->lock_log);
}

void use_current(void)
{
	pthread_mutex_lock(&current->lock_log.mutex);
	current->before[3]++;
}

/* The callers know which key it is. */
void init_given(struct sql_mutex *lock, psi_key key)
{
	init_mutex(key, lock);
}

void init_through(struct sql_mutex *lock, psi_key key)
{
	lock->psi = 0;
	init_given(lock, key);
	lock->psi = lock;
}

void init_by_argument(void)
{
	init_given(&LOCK_by_argument, key_LOCK_relay_log);
	init_through(&LOCK_by_two, key_LOCK_relay_log);
	LOCK_by_two.psi = 0;
}

void register_all(void)
{
	psi_mutex_service->add("innodb", innodb_mutexes, sizeof innodb_mutexes / sizeof *innodb_mutexes);
	psi_rwlock_service->add("innodb", innodb_rwlocks, sizeof innodb_rwlocks / sizeof *innodb_rwlocks);
	psi_mutex_service->add("sql", sql_mutexes, sizeof sql_mutexes / sizeof *sql_mutexes);
	psi_rwlock_service->add("sql", sql_rwlocks, sizeof sql_rwlocks / sizeof *sql_rwlocks);
	psi_cond_service->add("sql", sql_conds, sizeof sql_conds / sizeof *sql_conds);
	psi_mutex_service->add(event_of_sxlocks, 0, 0);
}
