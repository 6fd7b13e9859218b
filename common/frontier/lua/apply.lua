-- apply: the master sets a shard's state (which also undoes a seal) and raises its fence there.
-- @use _guard
-- @flags allow-oom
-- KEYS[1] meta hash
-- ARGV[1] layout version  ARGV[2] term  ARGV[3] job revision  ARGV[4] state
-- Returns {OK} | STALE MISSING VERSION
local refusal = master_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
redis.call('HSET', KEYS[1], 'state', ARGV[4])
return { 'OK' }
