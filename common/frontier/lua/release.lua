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
local now, gone, moved = now_ms(KEYS[1]), {}, 0
for at = #ARGV - 5, 4, -6 do   -- from the last one, so that the front of a queue keeps their order
  local claim, host = ARGV[at], ARGV[at + 1]
  local item = take_in_flight(KEYS[7], claim, ARGV[3])
  if item then
    redis.call('LPUSH', KEYS[7 + tonumber(ARGV[at + 2])], item)
    moved = moved + 1
  else
    gone[#gone + 1] = claim
  end
  end_request(KEYS[2], KEYS[4], KEYS[5], KEYS[6], KEYS[3], claim, host, tonumber(ARGV[at + 3]),
    tonumber(ARGV[at + 4]), now)
  if ARGV[at + 5] ~= '0' then postpone(KEYS[2], KEYS[3], host, now + tonumber(ARGV[at + 5])) end
  if redis.call('EXISTS', KEYS[7 + tonumber(ARGV[at + 2])]) == 1 then make_ready(KEYS[2], KEYS[3], host, now) end
end
if moved > 0 then
  redis.call('HINCRBY', KEYS[1], 'in_flight', -moved)
  redis.call('HINCRBY', KEYS[1], 'queued', moved)
end
return { 'OK', gone }
