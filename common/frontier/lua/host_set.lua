-- host_set: the command line changes how one host of a job is treated while it runs.
-- @use _guard _hosts
-- KEYS[1] meta hash    KEYS[2] ready zset   KEYS[3] pace zset  KEYS[4] busy hash
-- KEYS[5] blocked set  KEYS[6] delays hash  KEYS[7] the host's queue
-- ARGV[1] layout version  ARGV[2] term (0)  ARGV[3] job revision  ARGV[4] requests at once per host
-- ARGV[5] host            ARGV[6] 'block', 'unblock' or its delay in ms
-- Returns {OK} | {CLOSED} | STALE MISSING VERSION
-- Invariants: a blocked host stays ready, so that it is found again; claims put it off. Its pace is not touched:
--   when it is let go, it still rests since its last request.
local refusal, state = master_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
if state == 'closed' or state == 'cancelled' then return { 'CLOSED' } end
local host = ARGV[5]
if ARGV[6] == 'block' then
  redis.call('SADD', KEYS[5], host)
elseif ARGV[6] == 'unblock' then
  redis.call('SREM', KEYS[5], host)
  if redis.call('EXISTS', KEYS[7]) == 1 then
    ready_if_free(KEYS[2], KEYS[3], KEYS[4], host, tonumber(ARGV[4]), now_ms(KEYS[1]))
  end
else
  redis.call('HSET', KEYS[6], host, ARGV[6])
end
return { 'OK' }
