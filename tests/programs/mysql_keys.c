/*
 * The key variables of instruments, in a file of their own as in a server: the code that uses them
 * knows no more than their names.
 */
#include "mysql_ids.h"

typedef unsigned int psi_key;

#define KEY(id, name) psi_key name##_key;
IDS(KEY)
psi_key fil_space_latch_key, trx_purge_latch_key, index_tree_rw_lock_key;
psi_key key_LOCK_status, key_LOCK_log, key_LOCK_relay_log, key_LOCK_grant, key_COND_log;
psi_key key_twice;
psi_key PFS_NOT_INSTRUMENTED;
