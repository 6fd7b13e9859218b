-- promote: the owner moves delayed URLs that are due to the end of their host's queue (a lower tier).
-- @use _guard _hosts
-- KEYS[1] meta hash  KEYS[2] ready zset  KEYS[3] pace zset  KEYS[4] busy hash  KEYS[5] delayed zset
-- KEYS[6..] queues of the hosts concerned
-- ARGV[1] layout version  ARGV[2] server run  ARGV[3] token  ARGV[4] requests at once per host
-- then per URL: delayed member ("host\nitem"), queue index
-- Returns {OK, moved} | STALE MISSING VERSION RUN
local refusal = owner_refusal(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
local now, moved = now_ms(KEYS[1]), 0
for at = 5, #ARGV, 2 do
  local member = ARGV[at]
  if redis.call('ZREM', KEYS[5], member) == 1 then
    local cut = string.find(member, '\n', 1, true)
    local host = string.sub(member, 1, cut - 1)
    redis.call('RPUSH', KEYS[5 + tonumber(ARGV[at + 1])], string.sub(member, cut + 1))
    ready_if_free(KEYS[2], KEYS[3], KEYS[4], host, tonumber(ARGV[4]), now)
    moved = moved + 1
  end
end
if moved > 0 then
  redis.call('HINCRBY', KEYS[1], 'delayed', -moved)
  redis.call('HINCRBY', KEYS[1], 'queued', moved)
end
return { 'OK', moved }
