-- Wraps a test of sysbench's or of the lab's so that it can be stopped at any time with exact totals.
--
-- sysbench 1.0 ends cleanly only at a time limit: a signal kills it with statements in flight, and it prints no totals.
-- Here every thread reads the first byte of a shared file before each event. Once that is "1" the thread finishes, and
-- sysbench prints its totals as after a time limit.
local ffi = require("ffi")
ffi.cdef [[
int open(const char *path, int flags);
void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset);
]]

package.path = assert(os.getenv("LOAD_LAB"), "LOAD_LAB must be the folder of the lab's own tests") .. "/?.lua;" .. package.path
require(assert(os.getenv("LOAD_TEST"), "LOAD_TEST must name the sysbench test"))

local O_RDONLY, PROT_READ, MAP_SHARED = 0, 1, 1
local fd = ffi.C.open(assert(os.getenv("LOAD_STOP"), "LOAD_STOP must name the stop file"), O_RDONLY)
assert(fd >= 0, "cannot open the stop file")
local page = ffi.C.mmap(nil, 1, PROT_READ, MAP_SHARED, fd, 0)
assert(page ~= ffi.cast("void *", -1), "cannot map the stop file")
local stop = ffi.cast("volatile const uint8_t *", page)

-- Connects once before the threads start: MariaDB's client library cannot load MySQL's authentication plugin in two
-- threads at once.
local test_init = init
function init()
   test_init()
   sysbench.sql.driver():connect():disconnect()
end

local test_event = event
function event(thread_id)
   if stop[0] == 49 then
      return true
   end
   return test_event(thread_id)
end
