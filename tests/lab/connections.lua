-- Short connections: every event connects, runs one query and disconnects. sysbench's own tests keep their connections.
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
