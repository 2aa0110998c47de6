-- Online DDL during updates: the first thread repeatedly adds an index to a table and drops it, while the others run
-- oltp_update_index. A single thread runs only updates.
require("oltp_update_index")

local INDEX = "ddl_pad"
local common_init, update = thread_init, event
local alters, has_index = false, false

function thread_init(thread_id)
   common_init(thread_id)
   alters = thread_id == 0 and sysbench.opt.threads > 1
   if alters then
      -- An earlier run may have left the index behind.
      has_index = con:query_row("SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE() " ..
         "AND table_name = 'sbtest1' AND index_name = '" .. INDEX .. "'") ~= nil
   end
end

function event(thread_id)
   if not alters then
      return update(thread_id)
   end
   local change = has_index and "DROP INDEX " .. INDEX or "ADD INDEX " .. INDEX .. " (pad)"
   con:query("ALTER TABLE sbtest1 " .. change .. ", ALGORITHM=INPLACE, LOCK=NONE")
   has_index = not has_index
end
