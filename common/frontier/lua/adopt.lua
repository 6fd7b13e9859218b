-- adopt: an owner begins with a shard, or goes on with it after the server was restarted.
-- @use _guard
-- KEYS[1] meta hash
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token  ARGV[4] job revision  ARGV[5] shard state by etcd
-- ARGV[6] ms to stay quiet when the run changed (last request times may be lost)
-- Returns {OK, in flight, 1 if the run changed} | STALE | CLOSED | MISSING VERSION
-- Invariants: the caller read the run first, then verified its lock by a linearizable read, then calls.
local m = redis.call('HMGET', KEYS[1], 'version', 'run', 'fence', 'revision', 'state', 'in_flight')
if not m[1] then return { 'MISSING' } end
if m[1] ~= ARGV[1] then return { 'VERSION', m[1] } end
if tonumber(ARGV[3]) < tonumber(m[3]) then return { 'STALE' } end
if m[5] == 'closed' then return { 'CLOSED' } end
redis.call('HSET', KEYS[1], 'fence', ARGV[3])
if m[2] == ARGV[2] then return { 'OK', tonumber(m[6]), 0 } end
redis.call('HSET', KEYS[1], 'run', ARGV[2], 'quiet', now_ms() + tonumber(ARGV[6]))
-- The job's state is applied again, over a seal too (the master seals again). What only Redis knows
-- (the page budget is spent) is kept.
if tonumber(ARGV[4]) >= tonumber(m[4]) and m[5] ~= 'spent' then
  redis.call('HSET', KEYS[1], 'revision', ARGV[4], 'state', ARGV[5])
end
return { 'OK', tonumber(m[6]), 1 }
