-- release: the owner gives claims back unfinished, to the front of their host's queue.
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset  KEYS[3] pace zset  KEYS[4] slots zset  KEYS[5] slot hash
-- KEYS[6] busy hash  KEYS[7] in_flight   KEYS[8..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token
-- then per claim: claim, host, queue index, ms since a request for it ended (-1: none was sent; robots.txt
--   counts), delay ms, ms before which the host is not to be claimed again (other workers use it)
-- Returns {OK, {claims that were gone}} | STALE MISSING VERSION RUN
local refusal = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local now = now_ms(KEYS[1])
local mine, gone, moved = take_in_flight(KEYS[1], KEYS[7], ARGV[3], 4, 6)
for at = #ARGV - 5, 4, -6 do   -- from the last one, so that the front of a queue keeps their order
  local item = mine[ARGV[at]]
  if item then
    mine[ARGV[at]] = nil
    redis.call('LPUSH', KEYS[7 + tonumber(ARGV[at + 2])], item)
  end
  if ARGV[at + 5] ~= '0' then postpone(KEYS[2], KEYS[3], ARGV[at + 1], now + tonumber(ARGV[at + 5])) end
end
end_claims(KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], 7, 4, 6, now)
if moved > 0 then
  redis.call('HINCRBY', KEYS[1], 'in_flight', -moved)
  redis.call('HINCRBY', KEYS[1], 'queued', moved)
end
return { 'OK', gone }
