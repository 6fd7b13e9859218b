-- unstage: the master deletes seed chunks, by their numbers, once all their URLs were offered.
-- @use _guard
-- @flags allow-oom
-- KEYS[1] meta hash  KEYS[2] staged hash
-- ARGV[1] layout version  ARGV[2] term  ARGV[3] job revision  ARGV[4..] chunk numbers
-- Returns {OK, deleted} | STALE MISSING VERSION
local refusal = master_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local deleted = 0
for i = 4, #ARGV do deleted = deleted + redis.call('HDEL', KEYS[2], ARGV[i]) end
return { 'OK', deleted }
