-- seal: the master closes a shard to offers if it is empty and as it was seen.
-- @use _guard
-- KEYS[1] meta hash  KEYS[2] staged hash (seed chunks of the job; empty but on shard 0)
-- ARGV[1] layout version  ARGV[2] term  ARGV[3] job revision  ARGV[4] server run  ARGV[5] discovered as seen
-- ARGV[6] refilled as seen
-- Returns {OK} | {MOVED} (work left, or it changed) | STALE MISSING VERSION
-- Invariants: sealed shards answer RETRY to offers; the job is finished only when all are sealed at once.
local refusal, state = master_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local m = redis.call('HMGET', KEYS[1], 'run', 'discovered', 'queued', 'delayed', 'in_flight', 'refilled')
if (state ~= 'open' and state ~= 'spent') or m[1] ~= ARGV[4] or m[2] ~= ARGV[5] or (m[6] or '0') ~= ARGV[6]
  or m[3] ~= '0' or m[4] ~= '0' or m[5] ~= '0' or redis.call('HLEN', KEYS[2]) > 0 then
  return { 'MOVED' }
end
redis.call('HSET', KEYS[1], 'state', 'sealed')
return { 'OK' }
