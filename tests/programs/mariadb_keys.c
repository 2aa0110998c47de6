/* The key variables of instruments, in a file of their own as in a server. */
unsigned int dict_key, lock_key, purge_key, tree_key, pool_key, twice_key;
