-- adopt: an owner begins with a shard, or goes on with it after the server was restarted.
-- @use _guard
-- KEYS[1] meta hash
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token  ARGV[4] job revision  ARGV[5] shard state by etcd
-- ARGV[6] ms to stay quiet when the run changed (last request times may be lost)
-- Returns {OK, in flight, 1 if the run changed, adoption} | STALE | CLOSED | MISSING VERSION
-- Invariants: the caller read the run first, then verified its lock by a linearizable read, then calls.
--   An adoption is a number above that of every claim made before, also of claims that a server lost when it
--   went back to an older copy: the numbers go on from the time in us. Claims carry it, so that one which
--   arrives late, after its owner gave it up and recovered, takes nothing.
local m = redis.call('HMGET', KEYS[1], 'version', 'run', 'fence', 'revision', 'state', 'in_flight', 'claims')
if not m[1] then return { 'MISSING' } end
if m[1] ~= ARGV[1] then return { 'VERSION', m[1] } end
if tonumber(ARGV[3]) < tonumber(m[3]) then return { 'STALE' } end
if m[5] == 'closed' then return { 'CLOSED' } end
local t = redis.call('TIME')
local adoption = math.max(tonumber(m[7]) + 1, t[1] * 1000000 + t[2])
redis.call('HSET', KEYS[1], 'fence', ARGV[3], 'claims', adoption, 'adoption', adoption)
if m[2] == ARGV[2] then return { 'OK', tonumber(m[6]), 0, adoption } end
redis.call('HSET', KEYS[1], 'run', ARGV[2], 'quiet', now_ms(KEYS[1]) + tonumber(ARGV[6]))
-- The job's state is applied again, over a seal too (the master seals again). What only Redis knows
-- (the page budget is spent) is kept; not so a revision older than the caller's, by which pages would be
-- visited again after the job was closed.
if tonumber(ARGV[4]) >= tonumber(m[4]) then
  redis.call('HSET', KEYS[1], 'revision', ARGV[4])
  if m[5] ~= 'spent' then redis.call('HSET', KEYS[1], 'state', ARGV[5]) end
end
return { 'OK', tonumber(m[6]), 1, adoption }
