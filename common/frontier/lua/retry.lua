-- retry: the owner puts claims back for later, each delayed by its own back-off.
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset  KEYS[3] pace zset     KEYS[4] slots zset    KEYS[5] slot hash
-- KEYS[6] busy hash  KEYS[7] in_flight   KEYS[8] delayed zset  KEYS[9..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token
-- then per claim: claim, host, queue index, ms since the response ended (-1: no request), delay ms,
--   back-off ms, item with the next attempt number
-- Returns {OK, {claims that were gone}} | STALE MISSING VERSION RUN
local refusal = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local now = now_ms(KEYS[1])
local mine, gone, moved = take_in_flight(KEYS[1], KEYS[7], ARGV[3], 4, 7)
for at = 4, #ARGV, 7 do
  if mine[ARGV[at]] then
    mine[ARGV[at]] = nil
    redis.call('ZADD', KEYS[8], now + tonumber(ARGV[at + 5]), ARGV[at + 1] .. '\n' .. ARGV[at + 6])
  end
end
end_claims(KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], 8, 4, 7, now)
if moved > 0 then
  redis.call('HINCRBY', KEYS[1], 'in_flight', -moved)
  redis.call('HINCRBY', KEYS[1], 'delayed', moved)
end
return { 'OK', gone }
