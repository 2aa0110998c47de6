-- A mix of transactions in TPC-C's proportions, on small versions of its tables: every order and payment updates one of
-- a few warehouse and district rows. This is not TPC-C: it has no terminals, no think times and no full-sized tables.
require("oltp_common")

local WAREHOUSES, DISTRICTS, CUSTOMERS, ITEMS = 4, 10, 300, 1000
-- Rows per INSERT statement when filling the tables.
local BATCH = 500

local TABLES = {
   "warehouse (w INT PRIMARY KEY, ytd DECIMAL(12,2) NOT NULL)",
   "district (w INT, d INT, next_o INT NOT NULL, ytd DECIMAL(12,2) NOT NULL, PRIMARY KEY (w, d))",
   "customer (w INT, d INT, c INT, balance DECIMAL(12,2) NOT NULL, payments INT NOT NULL, data VARCHAR(250), " ..
      "PRIMARY KEY (w, d, c))",
   "item (i INT PRIMARY KEY, price DECIMAL(5,2) NOT NULL)",
   "stock (w INT, i INT, quantity INT NOT NULL, ytd INT NOT NULL, data VARCHAR(50), PRIMARY KEY (w, i))",
   "orders (w INT, d INT, o INT, c INT NOT NULL, carrier INT, entered DATETIME NOT NULL, PRIMARY KEY (w, d, o), " ..
      "KEY customer (w, d, c, o))",
   "new_orders (w INT, d INT, o INT, PRIMARY KEY (w, d, o))",
   "order_line (w INT, d INT, o INT, n INT, i INT NOT NULL, quantity INT NOT NULL, amount DECIMAL(6,2) NOT NULL, " ..
      "delivered DATETIME, PRIMARY KEY (w, d, o, n))",
   "history (id BIGINT AUTO_INCREMENT PRIMARY KEY, w INT, d INT, c INT, amount DECIMAL(6,2) NOT NULL)",
}

local random = sysbench.rand.uniform

local function run(text, ...)
   return con:query(text:format(...))
end

local function row(text, ...)
   return con:query_row(text:format(...))
end

-- Inserts count rows; make(i) returns the values of row i, counted from 0.
local function fill(connection, name, count, make)
   for first = 1, count, BATCH do
      local rows = {}
      for i = first, math.min(first + BATCH - 1, count) do
         rows[#rows + 1] = "(" .. make(i - 1) .. ")"
      end
      connection:query("INSERT INTO " .. name .. " VALUES " .. table.concat(rows, ","))
   end
end

local function prepare()
   local connection = sysbench.sql.driver():connect()
   for _, definition in ipairs(TABLES) do
      connection:query("CREATE TABLE " .. definition .. " ENGINE=InnoDB")
   end
   local districts = WAREHOUSES * DISTRICTS
   fill(connection, "warehouse", WAREHOUSES, function(i) return (i + 1) .. ", 0" end)
   fill(connection, "district", districts, function(i)
      return ("%d, %d, 1, 0"):format(i / DISTRICTS + 1, i % DISTRICTS + 1)
   end)
   fill(connection, "customer", districts * CUSTOMERS, function(i)
      local district = math.floor(i / CUSTOMERS)
      return ("%d, %d, %d, 0, 0, '%s'"):format(district / DISTRICTS + 1, district % DISTRICTS + 1, i % CUSTOMERS + 1,
         sysbench.rand.string(("@"):rep(200)))
   end)
   fill(connection, "item", ITEMS, function(i) return ("%d, %d"):format(i + 1, random(1, 100)) end)
   fill(connection, "stock", WAREHOUSES * ITEMS, function(i)
      return ("%d, %d, %d, 0, '%s'"):format(i / ITEMS + 1, i % ITEMS + 1, random(10, 100),
         sysbench.rand.string(("@"):rep(40)))
   end)
end

sysbench.cmdline.commands = { prepare = { prepare } }

local function new_order(w, d)
   local c, items = random(1, CUSTOMERS), {}
   for n = 1, random(5, 15) do
      items[n] = random(1, ITEMS)
   end
   -- All transactions lock stock in the same order, so that deadlocks stay rare.
   table.sort(items)
   row("SELECT ytd FROM warehouse WHERE w = %d", w)
   row("SELECT balance FROM customer WHERE w = %d AND d = %d AND c = %d", w, d, c)
   local o = row("SELECT next_o FROM district WHERE w = %d AND d = %d FOR UPDATE", w, d)
   run("UPDATE district SET next_o = next_o + 1 WHERE w = %d AND d = %d", w, d)
   run("INSERT INTO orders VALUES (%d, %d, %s, %d, NULL, NOW())", w, d, o, c)
   run("INSERT INTO new_orders VALUES (%d, %d, %s)", w, d, o)
   for n, i in ipairs(items) do
      local price, quantity = row("SELECT price FROM item WHERE i = %d", i), random(1, 10)
      row("SELECT quantity FROM stock WHERE w = %d AND i = %d FOR UPDATE", w, i)
      run("UPDATE stock SET quantity = IF(quantity > %d, quantity - %d, quantity + 91), ytd = ytd + %d " ..
         "WHERE w = %d AND i = %d", quantity + 10, quantity, quantity, w, i)
      run("INSERT INTO order_line VALUES (%d, %d, %s, %d, %d, %d, %s * %d, NULL)", w, d, o, n, i, quantity, price, quantity)
   end
   -- One in a hundred is rolled back.
   return random(1, 100) > 1
end

local function payment(w, d)
   local c, amount = random(1, CUSTOMERS), random(1, 5000)
   run("UPDATE warehouse SET ytd = ytd + %d WHERE w = %d", amount, w)
   run("UPDATE district SET ytd = ytd + %d WHERE w = %d AND d = %d", amount, w, d)
   run("UPDATE customer SET balance = balance - %d, payments = payments + 1 WHERE w = %d AND d = %d AND c = %d",
      amount, w, d, c)
   run("INSERT INTO history (w, d, c, amount) VALUES (%d, %d, %d, %d)", w, d, c, amount)
   return true
end

local function order_status(w, d)
   local c = random(1, CUSTOMERS)
   row("SELECT balance, data FROM customer WHERE w = %d AND d = %d AND c = %d", w, d, c)
   local o = row("SELECT o FROM orders WHERE w = %d AND d = %d AND c = %d ORDER BY o DESC LIMIT 1", w, d, c)
   if o then
      run("SELECT i, quantity, amount, delivered FROM order_line WHERE w = %d AND d = %d AND o = %s", w, d, o)
   end
   return true
end

-- Delivers the oldest order of each district, each in its own transaction, which TPC-C allows.
local function delivery(w)
   for d = 1, DISTRICTS do
      local o = row("SELECT o FROM new_orders WHERE w = %d AND d = %d ORDER BY o LIMIT 1 FOR UPDATE", w, d)
      if o then
         run("DELETE FROM new_orders WHERE w = %d AND d = %d AND o = %s", w, d, o)
         -- A locking read, because the order may be newer than this transaction's snapshot.
         local c = row("SELECT c FROM orders WHERE w = %d AND d = %d AND o = %s FOR UPDATE", w, d, o)
         run("UPDATE orders SET carrier = %d WHERE w = %d AND d = %d AND o = %s", random(1, 10), w, d, o)
         run("UPDATE order_line SET delivered = NOW() WHERE w = %d AND d = %d AND o = %s", w, d, o)
         local amount = row("SELECT SUM(amount) FROM order_line WHERE w = %d AND d = %d AND o = %s", w, d, o)
         run("UPDATE customer SET balance = balance + %s WHERE w = %d AND d = %d AND c = %s", amount, w, d, c)
      end
      con:query("COMMIT")
      con:query("BEGIN")
   end
   return true
end

local function stock_level(w, d)
   local next_o = row("SELECT next_o FROM district WHERE w = %d AND d = %d", w, d)
   row("SELECT COUNT(DISTINCT stock.i) FROM order_line JOIN stock ON stock.w = order_line.w AND stock.i = order_line.i " ..
      "WHERE order_line.w = %d AND order_line.d = %d AND order_line.o >= %s - 20 AND stock.quantity < %d", w, d, next_o,
      random(10, 20))
   return true
end

-- Cumulative percentage of each kind of transaction.
local MIX = { { 45, new_order }, { 88, payment }, { 92, order_status }, { 96, delivery }, { 100, stock_level } }

function thread_init()
   con = sysbench.sql.driver():connect()
end

function thread_done()
   con:disconnect()
end

function event()
   local which, w, d = random(1, 100), random(1, WAREHOUSES), random(1, DISTRICTS)
   for _, kind in ipairs(MIX) do
      if which <= kind[1] then
         con:query("BEGIN")
         con:query(kind[2](w, d) and "COMMIT" or "ROLLBACK")
         return
      end
   end
end
