/* Latch ids with the names of their instruments, as in InnoDB's own list. */
#define IDS(ID)                                                                                    \
	ID(AUTOINC, autoinc_mutex)                                                                 \
	ID(BUF_POOL_CHUNKS, buf_pool_chunks_mutex)                                                 \
	ID(BUF_POOL_FREE_LIST, buf_pool_free_list_mutex)                                           \
	ID(BUF_POOL_LRU_LIST, buf_pool_LRU_list_mutex)                                             \
	ID(DICT_SYS, dict_sys_mutex)                                                               \
	ID(FIL_SHARD, fil_system_mutex)                                                            \
	ID(FLUSH_LIST, flush_list_mutex)                                                           \
	ID(FTS_DELETE, fts_delete_mutex)                                                           \
	ID(IBUF, ibuf_mutex)                                                                       \
	ID(LOCK_SYS_PAGE, lock_sys_page_mutex)                                                     \
	ID(LOCK_SYS_WAIT, lock_wait_mutex)                                                         \
	ID(LOG_CHECKPOINTER, log_checkpointer_mutex)                                               \
	ID(LOG_WRITER, log_writer_mutex)                                                           \
	ID(PAGE_CLEANER, page_cleaner_mutex)                                                       \
	ID(PURGE_SYS_PQ, purge_sys_pq_mutex)                                                       \
	ID(RECV_SYS, recv_sys_mutex)                                                               \
	ID(RTR_MATCH_MUTEX, rtr_match_mutex)                                                       \
	ID(SRV_SYS, srv_sys_mutex)                                                                 \
	ID(SYNC_ARRAY_MUTEX, sync_array_mutex)                                                     \
	ID(TRX, trx_mutex)                                                                         \
	ID(TRX_SYS, trx_sys_mutex)                                                                 \
	ID(UNDO_SPACE_RSEG, undo_space_rseg_mutex)
