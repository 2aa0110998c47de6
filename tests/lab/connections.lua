-- Connections that come and go: each event is one, with a single query. sysbench's own tests keep theirs.
require("oltp_common")

local driver

function thread_init()
   driver = sysbench.sql.driver()
end

function thread_done()
end

function event()
   local connection = driver:connect()
   connection:query("SELECT c FROM sbtest1 WHERE id = " .. sysbench.rand.default(1, sysbench.opt.table_size))
   connection:disconnect()
end
