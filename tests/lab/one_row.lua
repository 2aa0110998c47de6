-- All threads change the same row: each waits until the transactions before it have ended.
require("oltp_common")

local connection

function thread_init()
   connection = sysbench.sql.driver():connect()
end

function thread_done()
   connection:disconnect()
end

function event()
   connection:query("UPDATE sbtest1 SET k = k + 1 WHERE id = 1")
end
